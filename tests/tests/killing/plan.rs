//! How long a run goes on, and what chance decides.

use std::time::{Duration, Instant};

use sinew_fabric::{Generator, SeededGenerator};

/// Environment: how many kills; when to begin no further one; the seed; the fabric of donors and services.
const KILLS: &str = "SINEW_SOAK_KILLS";
const SECONDS: &str = "SINEW_SOAK_SECONDS";
const SEED: &str = "SINEW_SOAK_SEED";
const FABRIC: &str = "SINEW_SOAK_FABRIC";

fn told<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().ok().unwrap_or_else(|| panic!("{name}={text} makes no sense")))
}

/// So many kills, or as many as there are in so much time.
pub struct Plan {
    pub random: SeededGenerator,
    pub fabric: String,
    what: &'static str,
    kills_max: u64,
    done: u64,
    began: Instant,
    limit: Option<Duration>,
}

impl Plan {
    /// What the environment says; else `kills`, from a seed that is new each time. Says which it is.
    pub fn new(what: &'static str, kills: u64) -> Self {
        let seed = told(SEED).unwrap_or_else(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            SeededGenerator::new(since.as_nanos() as u64).next_u64()
        });
        let limit = told(SECONDS).map(Duration::from_secs);
        let kills = told(KILLS).unwrap_or(if limit.is_some() { u64::MAX } else { kills });
        let fabric = told(FABRIC).unwrap_or_else(|| "shm".to_owned());
        println!("{what}: {SEED}={seed} {FABRIC}={fabric}");
        Self {
            random: SeededGenerator::new(seed),
            fabric,
            what,
            kills_max: kills,
            done: 0,
            began: Instant::now(),
            limit,
        }
    }

    /// Whether there is another kill to come.
    pub fn goes_on(&self) -> bool {
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

    /// Tells what happens, for who has to find out why something was lost.
    pub fn say(&self, text: &str) {
        println!("{}: {:8.2} s, {} killed: {text}", self.what, self.began.elapsed().as_secs_f64(), self.done);
    }

    /// A number below another.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// A time from `from` to `to` milliseconds.
    pub fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.random.below(to - from + 1))
    }
}
