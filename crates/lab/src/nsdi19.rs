//! Experiments of "Datacenter RPCs can be General and Fast" (nsdi19), which presents eRPC.

pub mod fig1;
pub mod fig4;
pub mod fig5;
pub mod fig6;
mod here;
pub mod incast_background;
mod large_calls;
pub mod masstree;
pub mod modelled_nics;
pub mod table3;
pub mod table4;
pub mod table5;
pub mod table6;

use sinew_rpc::Congestion;

/// An algorithm: the suffix of its rows' names, its name, and its configuration for a rate in Gbps.
type Named = (&'static str, &'static str, fn(f64) -> Congestion);

/// Algorithms for congestion control. The first is the paper's.
const ALGORITHMS: [Named; 3] = [
    ("", "Timely", Congestion::timely),
    (".swift", "Swift", Congestion::swift),
    (".dcqcn", "DCQCN", Congestion::dcqcn),
];
/// Suffix and description of rows without congestion control.
const NO_CONTROL: (&str, &str) = (".nocc", "without congestion control");
/// Name of what the paper's values with congestion control belong to.
const PAPERS_TIMELY: &str = "the paper's Timely";
/// Reason why differences from those are no errors of the model.
const BETTER_THAN_THE_PAPER: &str = "The paper's figures with congestion control are those of its Timely, and no \
    algorithm here is the same: the difference is no error. Rows without congestion control run what the paper ran. \
    Timely here is its patched form (CoNEXT 2016), which keeps a queue of some length, where the published form \
    (SIGCOMM 2015) never comes to rest; and its parameters were chosen for such incasts: it acts from 15 us on, where \
    the paper's acted from 50. With 50 us, or in its published form, the same model has round trips as long as without \
    congestion control (215, 538 and 1,063 us with 20, 50 and 99 clients, by `patched = false` or `low_us = 50` in a \
    workload): simulated round trips have no jitter, so the trend that the algorithm follows is flat once the queue \
    stands. Real hosts and clocks have jitter; the paper does not show how much of the difference it makes.";
