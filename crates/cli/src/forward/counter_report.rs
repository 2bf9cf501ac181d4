//! Counters of a forwarder, as text and as JSON.

use serde_json::{Map, Value, json};
use sinew::fabric::frames::FramePort;
use sinew::fabric::{Dropped, PortStats};
use sinew::forward::{Counters, Reason};
use sinew_harness::units::counted;

/// Counters of a forwarder and its ports.
pub struct CounterReport {
    pub counters: Counters,
    /// Counters of ports, by interface name.
    pub ports: Vec<(String, PortStats)>,
    /// Tables swapped in, and files refused, since the start.
    pub reloads: (u64, u64),
    /// Counts that the application adds.
    pub more: Map<String, Value>,
}

/// The counters of ports, by name.
pub fn ports<P: FramePort>(names: &[String], ports: &[P]) -> Vec<(String, PortStats)> {
    names.iter().cloned().zip(ports.iter().map(FramePort::stats)).collect()
}

fn dropped_by_reason(counters: &Counters) -> Vec<(&'static str, u64)> {
    let counts = Reason::ALL.iter().map(|reason| (reason.name(), counters.dropped(*reason)));
    counts.filter(|(_, count)| *count > 0).collect()
}

fn dropped_by_port(stats: &PortStats) -> Vec<(&'static str, u64)> {
    let counts = Dropped::ALL.into_iter().map(|reason| (reason.name(), stats.dropped(reason)));
    counts.filter(|(_, count)| *count > 0).collect()
}

impl CounterReport {
    /// One object.
    pub fn to_json(&self) -> Value {
        let Counters { received, forwarded, handled_locally, made, errors_suppressed, .. } = self.counters;
        let object = |counts: Vec<(&str, u64)>| -> Map<String, Value> {
            counts.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect()
        };
        let port = |(name, stats): &(String, PortStats)| {
            json!({
                "name": name,
                "rx_frames": stats.rx_packets,
                "rx_bytes": stats.rx_bytes,
                "tx_frames": stats.tx_packets,
                "tx_bytes": stats.tx_bytes,
                "dropped": object(dropped_by_port(stats)),
            })
        };
        let mut value = json!({
            "received": received,
            "forwarded": forwarded,
            "taken": handled_locally,
            "made": made,
            "errors_held": errors_suppressed,
            "dropped": object(dropped_by_reason(&self.counters)),
            "interfaces": self.ports.iter().map(port).collect::<Vec<_>>(),
            "reloads": self.reloads.0,
            "reloads_refused": self.reloads.1,
        });
        if let Some(object) = value.as_object_mut() {
            object.extend(self.more.clone());
        }
        value
    }

    /// One line.
    pub fn to_text(&self) -> String {
        let Counters { received, forwarded, handled_locally, made, .. } = self.counters;
        let received = counted(received, "frame");
        let mut text = format!("{received} received, {forwarded} forwarded, {handled_locally} for itself, {made} made");
        let mut dropped = dropped_by_reason(&self.counters);
        let of_ports = self.ports.iter().flat_map(|(_, stats)| dropped_by_port(stats));
        dropped.extend(of_ports);
        if !dropped.is_empty() {
            let list: Vec<String> = dropped.into_iter().map(|(name, count)| format!("{name} {count}")).collect();
            text += &format!("; dropped: {}", list.join(", "));
        }
        text
    }
}
