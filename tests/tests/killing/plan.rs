//! Length of a run, and its random choices.

use std::time::{Duration, Instant};

use sinew_fabric::{Generator, SeededGenerator};

/// Environment variables: number of kills, seconds after which no further kill begins, seed, and fabric of donors and
/// services.
const KILLS: &str = "SINEW_SOAK_KILLS";
const SECONDS: &str = "SINEW_SOAK_SECONDS";
const SEED: &str = "SINEW_SOAK_SEED";
const FABRIC: &str = "SINEW_SOAK_FABRIC";

fn from_env<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().ok().unwrap_or_else(|| panic!("{name}={text} makes no sense")))
}

/// A number of kills, or as many as fit in a time.
pub struct Plan {
    pub random: SeededGenerator,
    pub fabric: String,
    title: &'static str,
    kills_max: u64,
    done: u64,
    began: Instant,
    limit: Option<Duration>,
}

impl Plan {
    /// Takes the plan from the environment; by default `kills`, from a new seed. Prints the seed and the fabric.
    pub fn new(title: &'static str, kills: u64) -> Self {
        let seed = from_env(SEED).unwrap_or_else(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            SeededGenerator::new(since.as_nanos() as u64).next_u64()
        });
        let limit = from_env(SECONDS).map(Duration::from_secs);
        let kills = from_env(KILLS).unwrap_or(if limit.is_some() { u64::MAX } else { kills });
        let fabric = from_env(FABRIC).unwrap_or_else(|| "shm".to_owned());
        println!("{title}: {SEED}={seed} {FABRIC}={fabric}");
        Self {
            random: SeededGenerator::new(seed),
            fabric,
            title,
            kills_max: kills,
            done: 0,
            began: Instant::now(),
            limit,
        }
    }

    /// Whether another kill is to come.
    pub fn has_more(&self) -> bool {
        self.done < self.kills_max && self.limit.is_none_or(|limit| self.began.elapsed() < limit)
    }

    /// Notes a kill.
    pub fn killed(&mut self, what: &str) {
        self.done += 1;
        self.say(what);
    }

    pub fn done(&self) -> u64 {
        self.done
    }

    /// Prints what happens, for finding out later why something was lost.
    pub fn say(&self, text: &str) {
        println!("{}: {:8.2} s, {} killed: {text}", self.title, self.began.elapsed().as_secs_f64(), self.done);
    }

    /// Returns a random number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// Returns a random time from `from` to `to` milliseconds.
    pub fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.random.below(to - from + 1))
    }
}
