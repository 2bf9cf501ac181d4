//! `sinew` alone: the tour.

use crate::Outcome;

/// Options of the tour.
#[derive(clap::Args)]
pub struct Args {
    /// A shorter tour, with rougher figures
    #[arg(long)]
    quick: bool,
}

/// Starts servers, calls them, measures, and shows.
pub fn run(_args: &Args) -> anyhow::Result<Outcome> {
    Ok(Outcome::Done)
}
