//! What the limits reach on a machine of this class when nothing else runs on it.

use crate::bench::{Cores, Kind};
use crate::fabrics::Fabric;

/// The reference for a limit, where there is one.
pub fn reference(kind: Kind, fabric: Fabric, size: usize, cores: Cores) -> Option<f64> {
    let _ = (kind, fabric, size, cores);
    None
}
