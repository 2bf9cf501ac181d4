//! `sinew replica watch`: prints changes of keys.

use anyhow::bail;
use serde_json::json;
use sinew::replica::client::RequestOutcome;
use sinew::replica::kv::{Query, QueryResult};
use sinew::replica::wire;

use super::cluster::ClusterArgs;
use crate::key_form::KeyForm;
use crate::{Outcome, output};

const AFTER_HELP: &str = "\
Prints each change as REVISION KEY=VALUE, or REVISION KEY for a deletion, in order and without a gap, until Ctrl-C or
--count changes. Any member that hears of a leader answers; when it dies, is removed or is cut off, another goes on.
Members keep the last 65536 changes, or 32 MiB of them; a restarted member keeps none from before,
nor does one that was so far behind that its leader sent it a snapshot. If --from is older, the command fails and names
the oldest revision that can be had.

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

/// Runs `sinew replica watch`.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let (prefix, form) = (args.form.parse(&args.prefix)?, args.form);
    let mut cluster = args.cluster.open()?;
    let mut from = match args.from {
        Some(from) => from,
        None => {
            let now = Query::Range { from: b"", to: Some(b""), limit: 1 };
            let answer = cluster.query(sinew::replica::client_wire::Freshness::Linear, &now)?;
            match wire::decode(&answer) {
                Ok(QueryResult::Items { revision, .. }) => revision + 1,
                _ => bail!("an answer that cannot be read: use the same release everywhere"),
            }
        }
    };
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let limit = left.min(1000) as u32;
        let mut query = Vec::new();
        wire::encode(&Query::Watch { prefix: &prefix, from, limit }, &mut query);
        cluster.client.watch(0, &query, u64::MAX >> 1)?;
        let RequestOutcome::QueryAnswer(found) = cluster.next()?.1? else { bail!("an answer to another request") };
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
