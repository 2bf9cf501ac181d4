//! `sinew replica status`: the leader, and each member's progress.

use serde_json::{Value, json};
use sinew::replica::client::{ClientError, RequestOutcome};
use sinew::replica::client_wire::{ClientRequest, Role, Status};
use sinew_harness::units::counted;

use super::cluster::{ClusterArgs, DEFAULTS};
use crate::{Outcome, output, table};

const AFTER_HELP: &str = "\
Each member reports on itself. A member is behind by the committed entries that it has not applied. If no member
leads, the command exits with status 5.

--json prints leader (a name, or null) and members, a list of: name, address, role, term, committed, applied, behind,
snapshot, sessions, durable, disk_full, truncated_len (bytes of an incomplete write, cut off its log's end at its start)
and dropped; or, for one that does not answer: name, address and error.

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
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Founding => "waits for the others",
        Role::Outside => "outside: add it",
        Role::Follower => "follows",
        Role::Candidate => "asks for votes",
        Role::Leader => "leads",
        Role::Learner => "learns",
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
        lines.push(Line { name, address, status });
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
    if !known.is_empty() && args.cluster.members == DEFAULTS {
        lines.retain(|line| line.status.is_some() || !line.name.is_empty());
    }
    lines.sort_by(|one, other| one.name.cmp(&other.name));
    let statuses = || lines.iter().filter_map(|line| line.status.as_ref());
    let leader = statuses().filter(|status| status.role == Role::Leader).max_by_key(|status| status.term).cloned();
    let committed = statuses().map(|status| status.committed).max().unwrap_or(0);
    if args.json {
        let members: Vec<Value> = lines.iter().map(|line| member_json(line, committed)).collect();
        output::print(json!({ "leader": leader.as_ref().map(|leader| &leader.me.name), "members": members }))?;
    } else {
        let rows = lines.iter().map(|line| row(line, committed));
        output::print(table::of(&["member", "at", "role", "term", "applied", "behind", "disk"], rows, table::FIGURES))?;
        output::print(match &leader {
            Some(leader) => format!(
                "\n{} leads in term {}; {} committed; {}",
                leader.me.name,
                leader.term,
                counted(leader.committed, "entry"),
                counted(leader.sessions, "session")
            ),
            None => "\nnobody leads: a majority of the members has to run and reach each other".to_owned(),
        })?;
    }
    Ok(if leader.is_some() { Outcome::Done } else { Outcome::FoundWrong })
}

fn member_json(line: &Line, committed: u64) -> Value {
    let Some(status) = &line.status else {
        return json!({ "name": line.name, "address": line.address, "error": "no answer" });
    };
    let dropped = status.dropped;
    json!({
        "name": line.name, "address": line.address, "role": role(status.role), "term": status.term, "committed": status.committed,
        "applied": status.applied, "behind": committed.saturating_sub(status.applied), "snapshot": status.snapshot,
        "sessions": status.sessions, "durable": status.is_durable, "disk_full": status.is_full, "truncated_len": status.truncated_len,
        "dropped": { "malformed": dropped.malformed, "version": dropped.version, "cluster": dropped.cluster, "member": dropped.member,
            "contradiction": dropped.contradiction, "disk_full": dropped.disk_full,
            "unsent": dropped.unsent, "not_admitted": dropped.not_admitted },
    })
}

fn row(line: &Line, committed: u64) -> Vec<String> {
    let start = [line.name.clone(), line.address.clone()];
    let rest = match &line.status {
        Some(status) => [
            role(status.role).to_owned(),
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
        None => ["no answer", "", "", "", ""].map(str::to_owned),
    };
    start.into_iter().chain(rest).collect()
}
