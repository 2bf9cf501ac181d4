//! `sinew replica add`, `promote`, `remove` and `transfer`.

use anyhow::bail;
use serde_json::json;
use sinew::replica::client::RequestOutcome;
use sinew::replica::client_wire::ClientRequest;

use super::cluster::ClusterArgs;
use crate::fabrics::{self, Purpose};
use crate::reach::is_unspecified;
use crate::{Outcome, Usage, output};

/// Time to wait for a change, in ms: longer than the leader's own time-out, so that the leader can say why it gave up.
const TIMEOUT_MS: u64 = 40_000;

/// Options of all changes.
#[derive(clap::Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

const ADD_HELP: &str = "\
Start the member first, with `sinew serve replica --name NAME --peers ...,NAME=URL`. It learns what the others know
while they go on serving, and then votes. It replaces a member of the same name: so a host that died, or a member
without --data that was restarted, comes back with one command. A member with --data that was started again at another
address keeps its data, and only its address changes.

--json prints done.

Examples:
  sinew replica add d=udp://10.0.0.4:7401
  sinew replica add c=udp://127.0.0.1:7403   # it was started again, empty";

/// Add a new member, or re-add one that has lost its state.
#[derive(clap::Args)]
#[command(after_help = ADD_HELP)]
pub struct AddArgs {
    /// Name and address of the member, as NAME=URL
    #[arg(value_parser = super::serve::parse_peer)]
    member: (String, String),
    /// Add it as a learner, without a vote, until `sinew replica promote`
    #[arg(long)]
    learner: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

const PROMOTE_HELP: &str = "\
The learner votes once it is up to date.

--json prints done.

Example:
  sinew replica promote d";

/// Promote a learner to a voting member.
#[derive(clap::Args)]
#[command(after_help = PROMOTE_HELP)]
pub struct PromoteArgs {
    /// Name of the member
    name: String,
    #[command(flatten)]
    change: ChangeArgs,
}

const REMOVE_HELP: &str = "\
A leader that is removed hands over first. Stop the member's program afterwards. A member is removed only while a
majority of the voters that would remain can be reached.

--json prints done.

Example:
  sinew replica remove c";

/// Remove a member.
#[derive(clap::Args)]
#[command(after_help = REMOVE_HELP)]
pub struct RemoveArgs {
    /// Name of the member
    name: String,
    #[command(flatten)]
    change: ChangeArgs,
}

const TRANSFER_HELP: &str = "\
A leader that is stopped with Ctrl-C hands over by itself.

--json prints done.

Example:
  sinew replica transfer b";

/// Transfer leadership to another member.
#[derive(clap::Args)]
#[command(after_help = TRANSFER_HELP)]
pub struct TransferArgs {
    /// Name of the member that is to lead [default: the one that is least behind]
    name: Option<String>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl ChangeArgs {
    fn run(&self, ask: &ClientRequest<'_>, done: &str) -> anyhow::Result<Outcome> {
        let mut cluster = self.cluster.clone();
        cluster.timeout_ms.get_or_insert(TIMEOUT_MS);
        let mut cluster = cluster.open()?;
        match cluster.ask(ask, None)? {
            RequestOutcome::Done => {}
            other => bail!("an answer to another request: {other:?}"),
        }
        output::print(if self.json { json!({ "done": true }).to_string() } else { done.to_owned() })?;
        Ok(Outcome::Done)
    }
}

/// Runs `sinew replica add`.
pub fn add(args: &AddArgs) -> anyhow::Result<Outcome> {
    let (name, address) = args.member.clone();
    fabrics::check(&address, Purpose::Call).map_err(Usage::of)?;
    if is_unspecified(&address) {
        return Err(Usage(format!("{address}: name the address at which the others reach {name}")).into());
    }
    let done = if args.learner { format!("{name} is a learner") } else { format!("{name} is a member") };
    args.change.run(&ClientRequest::Add { name, address, learner: args.learner }, &done)
}

/// Runs `sinew replica promote`.
pub fn promote(args: &PromoteArgs) -> anyhow::Result<Outcome> {
    args.change.run(&ClientRequest::Promote { name: args.name.clone() }, &format!("{} is a voter", args.name))
}

/// Runs `sinew replica remove`.
pub fn remove(args: &RemoveArgs) -> anyhow::Result<Outcome> {
    args.change.run(&ClientRequest::Remove { name: args.name.clone() }, &format!("{} is no longer a member", args.name))
}

/// Runs `sinew replica transfer`.
pub fn transfer(args: &TransferArgs) -> anyhow::Result<Outcome> {
    args.change.run(&ClientRequest::Transfer { name: args.name.clone() }, "done")
}
