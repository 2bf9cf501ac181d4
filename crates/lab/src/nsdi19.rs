//! eRPC: Datacenter RPCs can be General and Fast.

pub mod fig4;
pub mod fig5;
pub mod fig6;
pub mod incast_background;
mod large_calls;
pub mod table3;
pub mod table4;
pub mod table5;

use sinew_rpc::Congestion;

/// How the names of an algorithm's rows end, what it is called, and how it is made for a rate in Gbps.
type Named = (&'static str, &'static str, fn(f64) -> Congestion);

/// Algorithms of congestion control. The first is the paper's.
const ALGORITHMS: [Named; 3] = [
    ("", "Timely", Congestion::timely),
    (".swift", "Swift", Congestion::swift),
    (".dcqcn", "DCQCN", Congestion::dcqcn),
];
/// How the names of rows end that have none, and what they say.
const NO_CONTROL: (&str, &str) = (".nocc", "without congestion control");
