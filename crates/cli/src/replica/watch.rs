//! `sinew replica watch`: prints changes of keys.

use anyhow::bail;
use serde_json::json;
use sinew::replica::client::RequestOutcome;
use sinew::replica::client_wire::{ClientRequest, Freshness};
use sinew::replica::kv::{Query, QueryResult};
use sinew::replica::wire;

use super::cluster::{Cluster, ClusterArgs};
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

/// Asks each member for changes that one of them no longer has, and returns the answer that goes back furthest. Where
/// members have changes, they answer at once.
fn ask_all(cluster: &mut Cluster, query: &[u8], mut best: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let RequestOutcome::Status(status) = cluster.ask(&ClientRequest::Status, None)? else {
        bail!("an answer to another request")
    };
    let oldest_in = |answer: &[u8]| match wire::decode(answer) {
        Ok(QueryResult::Compacted { oldest }) => oldest,
        _ => 0,
    };
    for member in &status.members {
        // A member that does not answer has nothing to add.
        if let Ok(RequestOutcome::QueryAnswer(answer)) =
            cluster.ask(&ClientRequest::Watch { query }, Some(&member.info.address))
            && oldest_in(&answer) < oldest_in(&best)
        {
            best = answer;
        }
    }
    Ok(best)
}

/// Runs `sinew replica watch`.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let (prefix, form) = (args.form.parse(&args.prefix)?, args.form);
    let mut cluster = args.cluster.open()?;
    // A watch may wait for ever, so a cluster that does not answer at all is found out here.
    let now = Query::Range { from: b"", to: Some(b""), limit: 1 };
    let mut from = match wire::decode(&cluster.query(Freshness::Linear, &now)?) {
        Ok(QueryResult::Items { revision, .. }) => args.from.unwrap_or(revision + 1),
        _ => bail!("an answer that cannot be read: use the same release everywhere"),
    };
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let limit = left.min(1000) as u32;
        let mut query = Vec::new();
        wire::encode(&Query::Watch { prefix: &prefix, from, limit }, &mut query);
        cluster.client.watch(0, &query, u64::MAX >> 1)?;
        let RequestOutcome::QueryAnswer(mut found) = cluster.next()?.1? else { bail!("an answer to another request") };
        if matches!(wire::decode(&found), Ok(QueryResult::Compacted { .. })) {
            found = ask_all(&mut cluster, &query, found)?;
        }
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
            Ok(QueryResult::Compacted { oldest }) => {
                bail!(
                    "changes before revision {oldest} are no longer kept, so {from} is too early: read the present values, and then watch from {oldest} on"
                )
            }
            _ => bail!("an answer that cannot be read: use the same release everywhere"),
        }
    }
    Ok(Outcome::Done)
}
