//! Tests of members.

/// Makes tests of facts that hold alike for members in memory and for members with disks.
macro_rules! in_memory_and_on_disk {
    ($($fact:ident,)*) => {
        mod in_memory {
            $(
                #[test]
                fn $fact() {
                    super::$fact(false);
                }
            )*
        }

        mod on_disk {
            $(
                #[test]
                fn $fact() {
                    super::$fact(true);
                }
            )*
        }
    };
}

mod appends;
mod classics;
mod durable;
mod hostile;
mod leaders;
mod losses;
mod members;
#[path = "../../tests/operations/mod.rs"]
mod operations;
mod snapshots;
mod swarm;
mod world;
