//! `sinew replica status`: the leader, and each member's progress.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sinew::replica::client::{ClientError, RequestOutcome};
use sinew::replica::client_wire::{ClientRequest, MemberStatus, Role, Standing, Status};
use sinew::replica::losses::Losses;
use sinew_harness::units::counted;

use super::cluster::{ClusterArgs, DEFAULTS};
use crate::{Outcome, advice, output, table};

const AFTER_HELP: &str = "\
Each member reports on itself. A member is behind by the committed entries that it has not applied. A member that
`leaves` was removed; it votes until the change that removes it is complete. One that `waits for the state` was added,
and does not have it yet. If no member leads, the command exits with status 5.

If a majority of the voters was started again without its state, nobody can lead or be added any more; the command says
what is left, if --at names a member that still has its state.

--json prints leader (a name, or null), lost (names of voters that were started again without their state, while nobody
leads) and members, a list of: name, address, role, term, committed, applied, behind, snapshot, sessions, durable,
disk_full, truncated_len (bytes of an incomplete write, cut off its log's end at its start) and dropped; or, for one
that does not answer: name, address, role (leaves, or null) and error.

Example:
  sinew replica status --at udp://10.0.0.1:7401";

/// Show which member leads, and how far each has got.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

struct Line {
    name: String,
    address: String,
    status: Option<Status>,
    /// What the leader says of the member, and the member itself does not: [`LEAVES`] or [`JOINS`].
    mark: Option<&'static str>,
}

/// Role of a member that was removed and still votes.
const LEAVES: &str = "leaves";
/// Role of a member that was added and does not have the state yet.
const JOINS: &str = "waits for the state";

impl Line {
    /// The role of a member that answers. One that is outside can be added, unless too many have lost their state.
    fn role(&self, status: &Status, is_lost: bool) -> &'static str {
        self.mark.filter(|mark| *mark == LEAVES || !is_lost).unwrap_or_else(|| role(status.role, is_lost))
    }
}

fn role(role: Role, is_lost: bool) -> &'static str {
    match role {
        Role::Founding => "waits for the others",
        Role::Outside if is_lost => "outside",
        Role::Outside => "outside: add it",
        Role::Follower => "follows",
        Role::Candidate => "asks for votes",
        Role::Leader => "leads",
        Role::Learner => "learns",
    }
}

/// Marks the lines of members that are leaving, and of those that have not learned yet that they are members. A leaving
/// life at whose address a later one answers gets a line of its own.
fn mark_changing(lines: &mut Vec<Line>, members: &[MemberStatus]) {
    for line in lines.iter_mut() {
        let is_member = |status: &Status| members.iter().any(|member| member.info.id == status.me.id);
        let joins = line.status.as_ref().is_some_and(|status| status.role == Role::Outside && is_member(status));
        line.mark = joins.then_some(JOINS);
    }
    for MemberStatus { info, .. } in members.iter().filter(|member| member.standing == Standing::Leaving) {
        let is_its = |line: &&mut Line| {
            line.address == info.address && line.status.as_ref().is_none_or(|status| status.me.id == info.id)
        };
        match lines.iter_mut().find(is_its) {
            Some(line) => line.mark = Some(LEAVES),
            None => {
                let (name, address) = (info.name.clone(), info.address.clone());
                lines.push(Line { name, address, status: None, mark: Some(LEAVES) });
            }
        }
    }
}

/// Remains of a cluster that nobody leads.
struct Remains<'a> {
    losses: Losses<'a>,
    /// The member that has most of the state.
    best: &'a Status,
}

impl<'a> Remains<'a> {
    /// Compares the voters, as the member that has most of the state knows them, with the lives that answer.
    fn of(statuses: impl Iterator<Item = &'a Status> + Clone) -> Option<Self> {
        let is_empty = |status: &&Status| matches!(status.role, Role::Outside | Role::Founding);
        let best =
            statuses.clone().filter(|status| !is_empty(status)).max_by_key(|status| (status.term, status.last))?;
        let all = statuses.clone();
        let members = |is_one: fn(Standing) -> bool| {
            let members = best.members.iter().filter(move |member| is_one(member.standing));
            members.map(|member| &member.info).collect::<Vec<_>>()
        };
        let stateless = statuses.filter(|status| is_empty(status) && status.applied == 0).map(|status| &status.me);
        let mut others = members(|standing| standing == Standing::Learner);
        others.extend(stateless);
        let alive: BTreeSet<_> = all.filter(|status| !is_empty(status)).map(|status| status.me.id).collect();
        let (incoming, outgoing) = (members(Standing::is_incoming), members(Standing::is_outgoing));
        let losses = Losses::of(&incoming, &outgoing, &others, |id| alive.contains(&id));
        Some(Self { losses, best })
    }

    fn text(&self) -> String {
        let me = &self.best.me;
        let were = if self.losses.names.len() == 1 { "was" } else { "were" };
        format!(
            "the cluster's state is lost: {} {were} started again without it, and the others are no majority, so nobody \
             can lead or be added. If they had --data, start them with their directories. Otherwise, what {} has, \
             which may lack the last writes, can be read with: sinew replica get '' --prefix --stale --at {}; then \
             stop all members and start them again without state (with --data, in empty directories): they form a new \
             cluster",
            self.losses.names.join(", "),
            me.name,
            advice::quoted(&me.address)
        )
    }
}

/// Asks all members.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut cluster = args.cluster.open()?;
    // A member that does not answer in this time is shown without a status.
    cluster.timeout_ns = cluster.timeout_ns.min(500_000_000);
    let mut lines: Vec<Line> = Vec::new();
    let mut to_ask: Vec<(String, String)> =
        args.cluster.members.iter().map(|address| (String::new(), address.clone())).collect();
    while let Some((name, address)) = to_ask.pop() {
        if lines.iter().any(|line| line.address == address) {
            continue;
        }
        cluster.client.learn_address(&address);
        cluster.client.ask(0, &ClientRequest::Status, Some(&address), cluster.timeout_ns)?;
        let status = match cluster.next()?.1 {
            Ok(RequestOutcome::Status(status)) => Some(*status),
            Ok(_) | Err(ClientError::NoAnswer { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(status) = &status {
            to_ask.extend(status.members.iter().map(|member| (member.info.name.clone(), member.info.address.clone())));
        }
        let name = status.as_ref().map_or(name, |status| status.me.name.clone());
        lines.push(Line { name, address, status, mark: None });
    }
    // An address that was named and does not answer has a name if other members know it. The default addresses mean
    // nothing if nobody knows them.
    let known: Vec<(String, String)> = lines
        .iter()
        .filter_map(|line| line.status.as_ref())
        .flat_map(|status| &status.members)
        .map(|member| (member.info.address.clone(), member.info.name.clone()))
        .collect();
    for line in lines.iter_mut().filter(|line| line.name.is_empty()) {
        let found = known.iter().find(|(address, _)| *address == line.address);
        line.name = found.map(|(_, name)| name.clone()).unwrap_or_default();
    }
    let latest = lines.iter().filter_map(|line| line.status.as_ref());
    let latest = latest.max_by_key(|status| (status.role == Role::Leader, status.term, status.applied));
    let members = latest.map(|status| status.members.clone()).unwrap_or_default();
    mark_changing(&mut lines, &members);
    if !known.is_empty() && args.cluster.members == DEFAULTS {
        lines.retain(|line| line.status.is_some() || !line.name.is_empty());
    }
    lines.sort_by(|one, other| one.name.cmp(&other.name));
    let statuses = || lines.iter().filter_map(|line| line.status.as_ref());
    let leader = statuses().filter(|status| status.role == Role::Leader).max_by_key(|status| status.term).cloned();
    let committed = statuses().map(|status| status.committed).max().unwrap_or(0);
    let remains = if leader.is_none() { Remains::of(statuses()) } else { None };
    let is_lost = remains.as_ref().is_some_and(|remains| remains.losses.is_final);
    if args.json {
        let members: Vec<Value> = lines.iter().map(|line| member_json(line, committed, is_lost)).collect();
        let lost = remains.map(|remains| remains.losses.names).unwrap_or_default();
        let leader = leader.as_ref().map(|leader| &leader.me.name);
        output::print(json!({ "leader": leader, "lost": lost, "members": members }))?;
    } else {
        let rows = lines.iter().map(|line| row(line, committed, is_lost));
        output::print(table::of(&["member", "at", "role", "term", "applied", "behind", "disk"], rows, table::FIGURES))?;
        output::print(match &leader {
            Some(leader) => format!(
                "\n{} leads in term {}; {} committed; {}",
                leader.me.name,
                leader.term,
                counted(leader.committed, "entry"),
                counted(leader.sessions, "session")
            ),
            None => match remains.filter(|remains| remains.losses.is_final) {
                Some(remains) => format!("\n{}", remains.text()),
                None => "\nnobody leads: a majority of the members has to run and reach each other".to_owned(),
            },
        })?;
    }
    Ok(if leader.is_some() { Outcome::Done } else { Outcome::FoundWrong })
}

fn member_json(line: &Line, committed: u64, is_lost: bool) -> Value {
    let Some(status) = &line.status else {
        return json!({ "name": line.name, "address": line.address, "role": line.mark, "error": "no answer" });
    };
    let role = line.role(status, is_lost);
    let dropped = status.dropped;
    json!({
        "name": line.name, "address": line.address, "role": role, "term": status.term, "committed": status.committed,
        "applied": status.applied, "behind": committed.saturating_sub(status.applied), "snapshot": status.snapshot,
        "sessions": status.sessions, "durable": status.is_durable, "disk_full": status.is_full, "truncated_len": status.truncated_len,
        "dropped": { "malformed": dropped.malformed, "version": dropped.version, "cluster": dropped.cluster, "member": dropped.member,
            "contradiction": dropped.contradiction, "disk_full": dropped.disk_full,
            "unsent": dropped.unsent, "not_admitted": dropped.not_admitted },
    })
}

fn row(line: &Line, committed: u64, is_lost: bool) -> Vec<String> {
    let start = [line.name.clone(), line.address.clone()];
    let rest = match &line.status {
        Some(status) => [
            line.role(status, is_lost).to_owned(),
            status.term.to_string(),
            status.applied.to_string(),
            committed.saturating_sub(status.applied).to_string(),
            match (status.is_durable, status.is_full) {
                (_, true) => "full",
                (true, _) => "yes",
                (false, _) => "no",
            }
            .to_owned(),
        ],
        None => {
            [if line.mark.is_some() { "leaves; no answer" } else { "no answer" }, "", "", "", ""].map(str::to_owned)
        }
    };
    start.into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use sinew::replica::wire::{MemberId, MemberInfo};

    use super::*;

    fn status(name: &str, id: u64) -> Status {
        Status {
            me: MemberInfo { id: MemberId(id), name: name.into(), address: format!("udp://{name}") },
            cluster: Some(1),
            role: Role::Follower,
            leader: None,
            term: 2,
            committed: 3,
            applied: 3,
            last: 3,
            snapshot: 1,
            sessions: 0,
            is_durable: false,
            is_full: false,
            truncated_len: 0,
            members: Vec::new(),
            dropped: Default::default(),
        }
    }

    fn line(name: &str, status: Option<Status>) -> Line {
        Line { name: name.into(), address: format!("udp://{name}"), status, mark: None }
    }

    #[test]
    fn members_that_leave_are_shown_whether_they_answer_or_not_or_a_later_life_does() {
        let member = |name: &str, id, standing| MemberStatus {
            info: status(name, id).me,
            standing,
            matched: None,
            silent_ns: None,
        };
        for (answers, roles) in [
            (Some(7), vec!["leaves".to_owned()]),
            (None, vec!["leaves; no answer".to_owned()]),
            (Some(8), vec!["follows".to_owned(), "leaves; no answer".to_owned()]),
        ] {
            let mut lines = vec![line("a", Some(status("a", 1))), line("c", answers.map(|id| status("c", id)))];
            let members =
                [member("a", 1, Standing::Voter), member("c", 7, Standing::Leaving), member("c", 8, Standing::Voter)];
            mark_changing(&mut lines, &members);
            let roles_of = |name: &str| {
                let of_name = lines.iter().filter(|line| line.name == name);
                of_name.map(|line| row(line, 3, false)[2].clone()).collect::<Vec<_>>()
            };
            assert_eq!((roles_of("a"), roles_of("c")), (vec!["follows".to_owned()], roles), "{answers:?}");
        }
    }

    #[test]
    fn a_member_that_was_added_is_not_to_be_added_once_more() {
        let outside = |id| Status { role: Role::Outside, ..status("d", id) };
        let info = status("d", 7).me;
        let members = [MemberStatus { info, standing: Standing::Learner, matched: None, silent_ns: None }];
        for (id, role) in [(7, "waits for the state"), (8, "outside: add it")] {
            let mut lines = vec![line("d", Some(outside(id)))];
            mark_changing(&mut lines, &members);
            assert_eq!(row(&lines[0], 3, false)[2], role);
        }
    }
}
