//! `sinew serve replica`: a member of a replicated key-value store.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde_json::json;
use sinew::host::{Interrupt, SystemEntropy, set_nice};
use sinew::prelude::*;
use sinew::replica::client_wire::{Role, Status};
use sinew::replica::disk::HostDisk;
use sinew::replica::host::Host;
use sinew::replica::kv::KvStore;
use sinew::replica::member::{LostMajority, Member, MemberConfig, check_peers};
use sinew_harness::units::counted;

use super::cluster;
use crate::fabrics::{self, Purpose};
use crate::reach::{KeyArgs, is_of_this_host, is_unspecified};
use crate::serve::{OutputArgs, begin};
use crate::{Outcome, Usage, advice, output};

/// Time that a new leader has to take over after a planned stop.
const HAND_OVER_NS: u64 = 100_000_000;

const AFTER_HELP: &str = "\
Three members survive the loss of any one, five of any two, seven of any three; four survive one, as three do. Start
all with the same --peers, names and addresses spelt alike; they form the cluster once all are up and empty. Every
acknowledged write is held by a majority of them.

Without --data everything is in memory, as in nsdi19: it is lost if a majority dies at once, and a member that is
restarted has no state. It waits until it is added again (`sinew replica add NAME=URL`); until then it does not vote.
With --data a member resumes where it was. If the power fails during a write, the log may end with an incomplete record,
which nobody was told of: it is cut off at the next start, and the member says how long it was.

A majority of members in memory that dies at once takes the state with it: nobody can lead or be added any more. `sinew
replica status` says so. What a survivor has, which may lack the last writes, can be read with `sinew replica get ''
--prefix --stale --at URL`. Then stop all members and start them again without state: they form a new cluster.

A member whose address changes keeps its data: stop it, start it with --peers in which its own address is the new one,
and add it there (`sinew replica add NAME=URL`). The others go on with it at its new address; give them the same --peers
when they are next started. Do so with one member at a time, and not with a copy of its data while the original runs.

A member asks for votes after one to two times --election-ms of silence, and a dead leader is usually replaced soon
after. On a busy host, where live members are silent for longer, a member waits for three to six times the longest such
silence, or for ten to twenty times --election-ms if that is less; it forgets a silence after 1,250 to 2,500 times
--election-ms. Give all members the same --election-ms: a member confirms no lease of a leader whose --election-ms is
more than twice its own. Where clients read with --lease, do not restart a member at once with a shorter --election-ms.
A leader that is stopped with Ctrl-C hands over first.

On a busy host, start each member in a session of its own (a terminal, a service, `setsid`). Where autogrouping is on
(`sysctl kernel.sched_autogroup_enabled`), Linux shares the processors among sessions first. On Linux 6.18, a member
waited for up to half a second beside busy programs of its own session. A larger --election-ms helps as well.

Beyond this host a cluster needs a key: --key-file, any 16 bytes or more, the same for all members and clients. Both
sides of each session prove that they have it; nothing is encrypted. With --open anybody is let in.

--json prints first `serving`, a list of one address, and at the end `status`: role, term and applied.

Examples:
  # In each of three terminals; in the others with --name b and --name c:
  P=a=udp://127.0.0.1:7401,b=udp://127.0.0.1:7402,c=udp://127.0.0.1:7403
  sinew serve replica --name a --peers $P
  # In a fourth:
  sinew replica put colour blue
  # Between hosts, with a key that all of them have:
  head -c 32 /dev/urandom > cluster.key
  P=a=udp://10.0.0.1:7401,b=udp://10.0.0.2:7401,c=udp://10.0.0.3:7401
  sinew serve replica --name a --peers $P --key-file cluster.key
  sinew replica status --at udp://10.0.0.1:7401 --key-file cluster.key";

/// Serve as a member of a replicated key-value store, until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Name of this member, one of those in --peers
    #[arg(long)]
    name: String,
    /// Names and addresses of all members, this one included, separated by commas: NAME=shm://NAME or
    /// NAME=udp://HOST:PORT
    #[arg(long, value_name = "NAME=URL", value_delimiter = ',', required = true, value_parser = parse_peer)]
    peers: Vec<(String, String)>,
    /// Directory for the log, which nothing else uses [default: the state is in memory alone]
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    /// Election time-out in milliseconds, 6 to 60000, the same on all members: one that hears from no leader for one to
    /// two times as long starts an election
    #[arg(long, value_name = "MS", default_value_t = 24, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(6..=60_000))]
    election_ms: u64,
    /// Scheduling priority, from -20, the most urgent, to 19: a member that other programs keep from running is taken
    /// for dead. With autogrouping it counts only against programs of the same session [default: that at which it is
    /// started]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: Option<i32>,
    /// Spin for up to 50 us before sleeping, for lower latency at the cost of processor time
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    key: KeyArgs,
    /// Admit anybody who reaches the addresses, without a key
    #[arg(long, conflicts_with = "key_file")]
    open: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Parses NAME=URL.
pub fn parse_peer(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, address)) if !name.is_empty() && !address.is_empty() => Ok((name.to_owned(), address.to_owned())),
        _ => Err("must be NAME=URL, as in a=udp://127.0.0.1:7401".to_owned()),
    }
}

impl Args {
    fn check(&self) -> anyhow::Result<&str> {
        let mut fabric = None;
        for (name, address) in &self.peers {
            let found = fabrics::check(address, Purpose::Serve)?;
            ensure!(
                *fabric.get_or_insert(found) == found,
                "--peers {name}={address}: all members must be on one fabric"
            );
            ensure!(
                !is_unspecified(address),
                "--peers {name}={address}: name the address at which the others and the clients reach {name}"
            );
            ensure!(
                self.open || self.key.key_file.is_some() || is_of_this_host(address),
                "{address}: other hosts reach it, and could read and write everything: give members and clients a key \
                 (--key-file FILE, the same for all), or let anybody in (--open)"
            );
        }
        let own = self.peers.iter().find(|(name, _)| *name == self.name);
        ensure!(own.is_some(), "--name {0}: --peers does not say where it is; add {0}=URL", self.name);
        Ok(check_peers(&self.name, &self.peers)?)
    }

    fn set_priority(&self) -> anyhow::Result<()> {
        let Some(asked) = self.nice else { return Ok(()) };
        set_nice(asked).with_context(|| {
            format!("--nice {asked}: the system does not allow it; run as root, or raise the limit (ulimit -e)")
        })
    }

    fn member_config(&self) -> MemberConfig {
        let default = MemberConfig::default();
        MemberConfig { tick_ns: self.election_ms * 1_000_000 / default.election_ticks as u64, ..default }
    }
}

type Kv = Host<Rpc, KvStore, HostDisk>;

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let address = args.check().map_err(Usage::of)?;
    let key = args.key.key()?;
    args.set_priority()?;
    let ended = begin(args.output.is_child(), |interrupt| {
        let disk = args.data.as_deref().map(HostDisk::open).transpose()?;
        let mut config = cluster::config();
        if args.spin {
            config.poller = sinew::fabric::PollPolicy::ADAPTIVE;
        }
        let nexus = Nexus::builder().config(config).build()?;
        let rpc = Rpc::open_with(&nexus, address)?;
        let random = Box::new(SystemEntropy::new()?);
        let now_ns = sinew::Endpoint::now_ns(&rpc);
        let peers = args.peers.clone();
        let member = Member::open(args.member_config(), &args.name, peers, KvStore::new(), disk, random, now_ns);
        let member = member.map_err(|error| match &args.data {
            Some(data) => anyhow::Error::from(error).context(format!("opening what {} keeps", data.display())),
            None => error.into(),
        })?;
        if let (Some((file, len)), Some(data)) = (member.truncated(), &args.data) {
            let (what, path) = (counted(len, "byte"), data.join(file));
            output::note(format_args!(
                "cut off the last {what} of {}, an incomplete write that was never acknowledged",
                path.display()
            ));
        }
        let mut host = Host::new(rpc, member)?;
        if let Some(key) = key {
            host = host.keyed(key, Box::new(SystemEntropy::new()?));
        }
        let address = host.rpc().address().to_string();
        let ask =
            format!("Stop with Ctrl-C. See who leads with: sinew replica status --at {}", advice::quoted(&address));
        args.output.print_ready(&[address], ask)?;
        let _guard = interrupt.wake_on_interrupt(host.rpc().waker());
        drive(&mut host, interrupt, &args.output)?;
        let now_ns = sinew::Endpoint::now_ns(host.rpc());
        let status = host.member().status(now_ns);
        let report = json!({ "role": format!("{:?}", status.role), "term": status.term, "applied": status.applied });
        args.output.print_end("status", report, format_args!("{} applied", counted(status.applied, "entry")))?;
        Ok(Outcome::Done)
    })?;
    Ok(ended.unwrap_or(Outcome::Failed))
}

/// Serves until the interrupt, and then until another member leads or time is up.
fn drive(host: &mut Kv, interrupt: Interrupt, output: &OutputArgs) -> anyhow::Result<()> {
    let mut last_text = String::new();
    let mut next_check_ns = 0;
    while !interrupt.is_set() {
        step(host)?;
        let now_ns = sinew::Endpoint::now_ns(host.rpc());
        if now_ns >= next_check_ns && !output.is_child() {
            next_check_ns = now_ns + 100_000_000;
            let text = match host.refusal() {
                Some((address, why)) => {
                    format!("{address} does not talk to this member: {why}; give all the same --key-file")
                }
                None => match host.member().peer_that_differs() {
                    Some(name) => format!(
                        "{name} was started with other --peers: give all the same names and addresses, spelt alike"
                    ),
                    None => {
                        let (status, lost) = (host.member().status(now_ns), host.member().lost_majority(now_ns));
                        let full = if status.is_full {
                            "; its disk is full, so it stores nothing until there is room"
                        } else {
                            ""
                        };
                        format!("{}{full}", state_text(&status, lost))
                    }
                },
            };
            if text != last_text {
                output::note(&text);
                last_text = text;
            }
        }
    }
    if host.member_mut().begin_stop() {
        let end_ns = sinew::Endpoint::now_ns(host.rpc()) + HAND_OVER_NS;
        while host.member().is_leader() && sinew::Endpoint::now_ns(host.rpc()) < end_ns {
            step(host)?;
        }
        // Send what it still owes its clients.
        for _ in 0..4 {
            host.turn()?;
        }
    }
    Ok(())
}

fn step(host: &mut Kv) -> anyhow::Result<()> {
    let busy = host.turn()?;
    let rest_ns = host.sleep_ns();
    Ok(host.rpc().rest(busy, Some(rest_ns))?)
}

/// Text for a cluster that has lost its majority.
fn lost_text(status: &Status, lost: &LostMajority<'_>) -> String {
    let (by, names) = (lost.by, lost.others.join(", "));
    let has_state = status.role != Role::Outside;
    let who = match (has_state, &lost.others[..]) {
        (true, _) => format!("looks for a leader, but {names} lost the state"),
        (false, []) => "has no state".to_owned(),
        (false, [other]) => format!("has no state, and neither has {other}"),
        (false, _) => format!("has no state, and neither have {names}"),
    };
    let unless = if has_state { "the members".to_owned() } else { format!("the members that {} knows", by.name) };
    format!(
        "{who}: unless {unless} have changed since, the cluster has lost its majority, and can add nobody; see what is \
         left with: sinew replica status --at {}",
        advice::quoted(&by.address)
    )
}

/// The member's state as text, which is printed whenever it changes.
fn state_text(status: &Status, lost: Option<LostMajority<'_>>) -> String {
    let leader = status.leader.as_ref().map(|leader| leader.name.as_str());
    let known = status.members.iter().map(|member| &member.info).find(|info| info.id == status.me.id);
    let has_moved = known.is_some_and(|known| known.address != status.me.address);
    if let (None, Some(lost)) = (leader, lost) {
        return lost_text(status, &lost);
    }
    match (status.role, leader) {
        (Role::Follower | Role::Candidate | Role::Learner, None) if has_moved => format!(
            "has moved, and the others know only its former address; give them the new one with: sinew replica add \
             {}={}",
            status.me.name, status.me.address
        ),
        (Role::Founding, _) => "waits until all of --peers are there".to_owned(),
        (Role::Outside, _) if status.applied > 0 => {
            format!(
                "is no longer a member; to add it again: sinew replica add {}={}",
                status.me.name, status.me.address
            )
        }
        (Role::Outside, _) => format!(
            "has no state, and the others already form a cluster; add it with: sinew replica add {}={}",
            status.me.name, status.me.address
        ),
        (Role::Leader, _) => format!("leads, in term {}", status.term),
        (Role::Learner, Some(leader)) => format!("learns from {leader}"),
        (_, Some(leader)) => format!("follows {leader}, in term {}", status.term),
        (_, None) => "looks for a leader".to_owned(),
    }
}
