//! `sinew replica add`, `promote`, `remove` and `transfer`.

use anyhow::bail;
use serde_json::json;
use sinew::replica::client::Answered;
use sinew::replica::client_wire::Ask;

use super::cluster::ClusterArgs;
use crate::fabrics::{self, Purpose};
use crate::{Outcome, Usage, output};

/// What all changes have.
#[derive(clap::Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

const ADD_HELP: &str = "\
The member is started first, with `sinew serve replica --name NAME --peers ...,NAME=URL`. It learns what the others know while they serve, and then votes. One of
the same name that is there already is replaced: so a host that died, or a member without --data that was started again, comes back with one command.

JSON: done.

Examples:
  sinew replica add d=udp://10.0.0.4:7401
  sinew replica add c=udp://127.0.0.1:7403       after it was started again with nothing";

/// Add a member, or add one again that lost its state.
#[derive(clap::Args)]
#[command(after_help = ADD_HELP)]
pub struct AddArgs {
    /// NAME=URL
    #[arg(value_parser = super::serve::parse_peer)]
    member: (String, String),
    /// It learns, and does not vote until `sinew replica promote`
    #[arg(long)]
    learner: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Let a learner vote.
#[derive(clap::Args)]
#[command(after_help = "It votes once it is up to date.\n\nJSON: done.\n\nExample:\n  sinew replica promote d")]
pub struct PromoteArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Let a member go.
#[derive(clap::Args)]
#[command(
    after_help = "A leader that is removed hands over first. Stop the member's program afterwards.\n\nJSON: done.\n\nExample:\n  sinew replica remove c"
)]
pub struct RemoveArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Have another member lead.
#[derive(clap::Args)]
#[command(
    after_help = "Without a name, the member that is the least behind. A member that is stopped with Ctrl-C does so by itself.\n\nJSON: done.\n\nExample:\n  sinew replica transfer b"
)]
pub struct TransferArgs {
    /// Its name
    name: Option<String>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl ChangeArgs {
    fn run(&self, ask: &Ask<'_>, done: &str) -> anyhow::Result<Outcome> {
        let mut cluster = self.cluster.open()?;
        // The leader gives up before its client does, and says why.
        cluster.timeout_ns = cluster.timeout_ns.max(40_000_000_000);
        match cluster.ask(ask, None)? {
            Answered::Done => {}
            other => bail!("an answer to something else: {other:?}"),
        }
        output::print(if self.json { json!({ "done": true }).to_string() } else { done.to_owned() })?;
        Ok(Outcome::Done)
    }
}

/// Adds.
pub fn add(args: &AddArgs) -> anyhow::Result<Outcome> {
    let (name, address) = args.member.clone();
    fabrics::check(&address, Purpose::Call).map_err(Usage::of)?;
    let done = if args.learner { format!("{name} learns") } else { format!("{name} is a member") };
    args.change.run(&Ask::Add { name, address, learner: args.learner }, &done)
}

/// Promotes.
pub fn promote(args: &PromoteArgs) -> anyhow::Result<Outcome> {
    args.change.run(&Ask::Promote { name: args.name.clone() }, &format!("{} votes", args.name))
}

/// Removes.
pub fn remove(args: &RemoveArgs) -> anyhow::Result<Outcome> {
    args.change.run(&Ask::Remove { name: args.name.clone() }, &format!("{} is no member any more", args.name))
}

/// Hands the leadership over.
pub fn transfer(args: &TransferArgs) -> anyhow::Result<Outcome> {
    args.change.run(&Ask::Transfer { name: args.name.clone() }, "done")
}
