//! `sinew replica watch`: prints changes of keys.

use anyhow::{Context, bail};
use serde_json::json;
use sinew::replica::client::{ClientError, RequestOutcome};
use sinew::replica::client_wire::{ClientRequest, Freshness};
use sinew::replica::kv::{Query, QueryResult};
use sinew::replica::wire;

use super::cluster::{Cluster, ClusterArgs, UNREADABLE};
use crate::key_form::KeyForm;
use crate::{Outcome, output};

const AFTER_HELP: &str = "\
Prints each change as REVISION KEY=VALUE, or REVISION KEY for a deletion, in order and without a gap, until Ctrl-C or
--count changes. Any member that hears of a leader answers; when it dies, is removed or is cut off, another goes on.
Members keep the last 65536 changes, or 32 MiB of them. A member that began with a snapshot, since it was restarted or
far behind, keeps none from before. If no member has --from any more, the command fails and names the oldest revision
that can be had.

--json prints an object on each line: revision, key and value (null for a deletion).

Examples:
  sinew replica watch config/
  sinew replica watch '' --from 1 --count 10 --json";

/// Print changes as they happen.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Prefix of the keys to watch; '' for all keys
    prefix: String,
    #[command(flatten)]
    form: KeyForm,
    /// First revision to print [default: the next one]
    #[arg(long, value_name = "REVISION")]
    from: Option<u64>,
    /// End after this many changes [default: never]
    #[arg(long)]
    count: Option<u64>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print JSON, one object on each line
    #[arg(long)]
    json: bool,
}

/// Longest wait for one member's answer whether it has old changes, and for changes at one member alone, in ns.
const PROBE_NS: u64 = 1_000_000_000;
const AT_ONE_NS: u64 = 10_000_000_000;

/// The address of a member that has the changes from a revision on.
///
/// # Errors
///
/// No member has; the error names the oldest revision that one of them has.
fn find_member(cluster: &mut Cluster, from: u64) -> anyhow::Result<String> {
    let RequestOutcome::Status(status) = cluster.ask(&ClientRequest::Status, None)? else {
        bail!("an answer to another request")
    };
    // With any prefix but this one, a member might wait for a change.
    let mut query = Vec::new();
    wire::encode(&Query::Watch { prefix: b"", from, limit: 1 }, &mut query);
    let mut oldest_kept = None::<u64>;
    for address in status.members.into_iter().map(|member| member.info.address) {
        cluster.client.watch_at(0, &query, Some(&address), PROBE_NS.min(cluster.timeout_ns))?;
        // A member that does not answer has nothing to add.
        let Ok(RequestOutcome::QueryAnswer(found)) = cluster.next()?.1 else { continue };
        match wire::decode(&found) {
            Ok(QueryResult::Compacted { oldest }) => {
                oldest_kept = Some(oldest_kept.map_or(oldest, |kept| kept.min(oldest)));
            }
            _ => return Ok(address),
        }
    }
    let oldest = oldest_kept.context("no member answers")?;
    bail!(
        "changes before revision {oldest} are no longer kept, so {from} is too early: read the present values, and then watch from {oldest} on"
    )
}

/// Runs `sinew replica watch`.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let (prefix, form) = (args.form.parse(&args.prefix)?, args.form);
    let mut cluster = args.cluster.open()?;
    // A watch may wait for ever, so a cluster that does not answer at all is found out here.
    let now = Query::Range { from: b"", to: Some(b""), limit: 1 };
    let mut from = match wire::decode(&cluster.query(Freshness::Linear, &now)?) {
        Ok(QueryResult::Items { revision, .. }) => args.from.unwrap_or(revision + 1),
        _ => bail!(UNREADABLE),
    };
    let mut left = args.count.unwrap_or(u64::MAX);
    // Any member, unless only one has the changes.
    let mut at = None::<String>;
    while left > 0 {
        let limit = left.min(1000) as u32;
        let mut query = Vec::new();
        wire::encode(&Query::Watch { prefix: &prefix, from, limit }, &mut query);
        let timeout_ns = if at.is_some() { AT_ONE_NS } else { u64::MAX >> 1 };
        cluster.client.watch_at(0, &query, at.as_deref(), timeout_ns)?;
        let found = match cluster.next()?.1 {
            Ok(RequestOutcome::QueryAnswer(found)) => found,
            Ok(_) => bail!("an answer to another request"),
            Err(ClientError::NoAnswer { .. }) if at.take().is_some() => continue,
            Err(error) => return Err(error.into()),
        };
        match wire::decode(&found) {
            Ok(QueryResult::Changes { changes, next }) => {
                for change in &changes {
                    if args.json {
                        let value = change.value.map(|value| form.text(value));
                        output::print(
                            json!({ "revision": change.revision, "key": form.text(change.key), "value": value }),
                        )?;
                        continue;
                    }
                    let mut line = format!("{} ", change.revision).into_bytes();
                    line.extend(form.line_bytes(change.key));
                    if let Some(value) = change.value {
                        line.push(b'=');
                        line.extend(form.line_bytes(value));
                    }
                    output::print_line(&line)?;
                }
                left -= (changes.len() as u64).min(left);
                from = next;
            }
            Ok(QueryResult::Compacted { .. }) => at = Some(find_member(&mut cluster, from)?),
            _ => bail!(UNREADABLE),
        }
    }
    Ok(Outcome::Done)
}
