//! `sinew replica put`, `get` and `delete`.

use std::io::Read;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use sinew::replica::client_wire::Freshness;
use sinew::replica::kv::{Command, CommandResult, Expect, Item, Query, QueryResult};
use sinew::replica::wire;

use super::cluster::{ClusterArgs, UNREADABLE};
use crate::key_form::KeyForm;
use crate::{Outcome, Usage, output};

const PUT_HELP: &str = "\
With --if-revision or --if-absent the key changes only if its present state is the expected one; otherwise the command
exits with status 5.

--json prints revision; or, if the present state differs, found (revision, value) or null.

Examples:
  sinew replica put colour blue
  sinew replica put config - < config.json
  sinew replica put lock me --if-absent
  sinew replica put colour green --if-revision 7 \\
      --at udp://10.0.0.1:7401,udp://10.0.0.2:7401";

/// Store a value under a key.
#[derive(clap::Args)]
#[command(after_help = PUT_HELP)]
pub struct PutArgs {
    /// Key, up to 64 KiB
    key: String,
    #[command(flatten)]
    form: KeyForm,
    /// Value, up to 1 MiB; - reads it from standard input
    value: String,
    /// Store only if the key's value has this revision
    #[arg(long, value_name = "REVISION", conflicts_with = "if_absent")]
    if_revision: Option<u64>,
    /// Store only if the key does not exist
    #[arg(long)]
    if_absent: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

const GET_HELP: &str = "\
A read sees all that was acknowledged before it began: the leader asks a majority whether it still leads. With --lease
the leader answers alone if a majority confirmed it a moment ago. Such a read is as fresh, provided that no member's
clock runs more than 1 % faster than another's and no member is restarted at once with a shorter --election-ms. With
--stale any member answers, with what it has.

A value is printed as it is, with a line break after it only on a terminal. If there is no such key, the command exits
with status 5.

With --prefix, keys and values of more than a megabyte are read in several parts, each with the state of its own moment.

--json prints revision (of the store), and key, value, item_revision and created; with --prefix items, a list of
these, and more, whether there are others behind them; revision is then that of the first part.

Examples:
  sinew replica get colour
  sinew replica get config/ --prefix --limit 10
  sinew replica get config/ --prefix --after config/colour
  sinew replica get colour --stale --at udp://10.0.0.3:7401";

/// Print a key's value, or those of several keys.
#[derive(clap::Args)]
#[command(after_help = GET_HELP)]
pub struct GetArgs {
    /// The key
    key: String,
    #[command(flatten)]
    form: KeyForm,
    /// Print all keys that begin with KEY, as KEY=VALUE
    #[arg(long)]
    prefix: bool,
    /// Number of keys to print at most, with --prefix, from 1
    #[arg(long, requires = "prefix", default_value_t = 1000, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Begin behind this key, with --prefix: the last one that was printed
    #[arg(long, value_name = "KEY", requires = "prefix")]
    after: Option<String>,
    /// Let the leader answer alone, which relies on the members' clocks running at the same rate to within 1 %
    #[arg(long, conflicts_with = "stale")]
    lease: bool,
    /// Let any member answer with the state that it has, which may be stale
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

const DELETE_HELP: &str = "\
If there is no such key, the command exits with status 5.

--json prints revision, or null.

Example:
  sinew replica delete colour";

/// Delete a key.
#[derive(clap::Args)]
#[command(after_help = DELETE_HELP)]
pub struct DeleteArgs {
    /// The key
    key: String,
    #[command(flatten)]
    form: KeyForm,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn item_json(item: &Item<'_>, key: &[u8], form: KeyForm) -> Value {
    let (key, value) = (form.text(key), form.text(item.value));
    json!({ "key": key, "value": value, "item_revision": item.revision, "created": item.created })
}

/// Runs `sinew replica put`.
pub fn put(args: &PutArgs) -> anyhow::Result<Outcome> {
    let value = if args.value == "-" {
        let mut value = Vec::new();
        std::io::stdin().lock().read_to_end(&mut value).context("reading the value")?;
        value
    } else {
        args.value.clone().into_bytes()
    };
    let key = &args.form.parse(&args.key)?[..];
    let expect = match args.if_revision {
        Some(revision) => Some(Expect::Revision(revision)),
        None => args.if_absent.then_some(Expect::Nothing),
    };
    let command = match expect {
        Some(expect) => Command::Swap { key, expect, value: Some(&value) },
        None => Command::Put { key, value: &value },
    };
    command.check().map_err(Usage::of)?;
    let answer = args.cluster.open()?.command(&command)?;
    match wire::decode(&answer) {
        Ok(CommandResult::Changed { revision }) => {
            let text = format!("revision {revision}");
            output::print(if args.json { json!({ "revision": revision }).to_string() } else { text })?;
            Ok(Outcome::Done)
        }
        Ok(CommandResult::Differs { found }) => {
            if args.json {
                let found =
                    found.map(|found| json!({ "revision": found.revision, "value": args.form.text(found.value) }));
                output::print(json!({ "found": found }))?;
            } else {
                output::complain(match found {
                    Some(found) => format!("{} has revision {}: nothing was changed", args.key, found.revision),
                    None => format!("there is no {}: nothing was changed", args.key),
                });
            }
            Ok(Outcome::FoundWrong)
        }
        _ => bail!(UNREADABLE),
    }
}

/// The first key after all that begin with `prefix`.
fn end_of(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

/// Runs `sinew replica get`.
pub fn get(args: &GetArgs) -> anyhow::Result<Outcome> {
    let freshness = match (args.lease, args.stale) {
        (true, _) => Freshness::Lease,
        (_, true) => Freshness::Stale,
        _ => Freshness::Linear,
    };
    let key = &args.form.parse(&args.key)?[..];
    if args.prefix {
        return get_all(args, key, freshness);
    }
    let answer = args.cluster.open()?.query(freshness, &Query::Get { key })?;
    match wire::decode(&answer) {
        Ok(QueryResult::Item { item: Some(item), revision }) => {
            if args.json {
                let mut object = item_json(&item, key, args.form);
                object["revision"] = revision.into();
                output::print(object)?;
            } else {
                output::print_bytes(item.value)?;
            }
            Ok(Outcome::Done)
        }
        Ok(QueryResult::Item { item: None, revision }) => {
            match args.json {
                true => _ = output::print(json!({ "revision": revision, "key": args.key, "value": null }))?,
                false => output::complain(format_args!("there is no {}", args.key)),
            }
            Ok(Outcome::FoundWrong)
        }
        _ => bail!(UNREADABLE),
    }
}

/// The first key after `key`.
fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Prints all keys that begin with `prefix`, in as many parts as answers have room for.
fn get_all(args: &GetArgs, prefix: &[u8], freshness: Freshness) -> anyhow::Result<Outcome> {
    let (end, mut cluster) = (end_of(prefix), args.cluster.open()?);
    let after = args.after.as_ref().map(|after| args.form.parse(after)).transpose()?;
    let mut from = after.map_or(prefix.to_vec(), |after| behind(&after).max(prefix.to_vec()));
    if let Some(end) = &end {
        from = from.min(end.clone());
    }
    let (mut left, mut revision_read, mut found) = (args.limit, None, Vec::new());
    let has_more = loop {
        let answer = cluster.query(freshness, &Query::Range { from: &from, to: end.as_deref(), limit: left })?;
        let Ok(QueryResult::Items { revision, items, more }) = wire::decode(&answer) else { bail!(UNREADABLE) };
        revision_read.get_or_insert(revision);
        for item in &items {
            if args.json {
                found.push(item_json(item, item.key, args.form));
            } else {
                let [key, value] = [item.key, item.value].map(|bytes| args.form.line_bytes(bytes));
                output::print_line(&[&key[..], &value].join(&b'='))?;
            }
        }
        left = left.saturating_sub(items.len() as u32);
        match items.last() {
            Some(last) if more && left > 0 => from = behind(last.key),
            _ => break more,
        }
    };
    if args.json {
        output::print(json!({ "revision": revision_read, "items": found, "more": has_more }))?;
    } else if has_more {
        output::note("there are more: raise --limit, or go on with --after and the last key");
    }
    Ok(Outcome::Done)
}

/// Runs `sinew replica delete`.
pub fn delete(args: &DeleteArgs) -> anyhow::Result<Outcome> {
    let key = args.form.parse(&args.key)?;
    let command = Command::Delete { key: &key };
    command.check().map_err(Usage::of)?;
    let answer = args.cluster.open()?.command(&command)?;
    let revision = match wire::decode(&answer) {
        Ok(CommandResult::Changed { revision }) => Some(revision),
        Ok(CommandResult::KeyMissing) => None,
        _ => bail!(UNREADABLE),
    };
    match revision {
        _ if args.json => _ = output::print(json!({ "revision": revision }))?,
        Some(revision) => _ = output::print(format_args!("revision {revision}"))?,
        None => output::complain(format_args!("there is no {}", args.key)),
    }
    Ok(if revision.is_some() { Outcome::Done } else { Outcome::FoundWrong })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_that_begin_so() {
        assert_eq!(end_of(b"a/"), Some(b"a0".to_vec()));
        assert_eq!(end_of(&[1, 255, 255]), Some(vec![2]));
        assert_eq!((end_of(&[255]), end_of(&[])), (None, None));
    }
}
