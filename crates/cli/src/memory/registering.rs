//! The size from which memory is registered instead of copied: an option, or a measurement of this machine.

use anyhow::Context;
use serde_json::{Value, json};
use sinew::fabric::verbs::ProtectionDomain;
use sinew::host::HostClock;
use sinew::remote_memory::engine::{CostCurve, RegistrationPolicy};
use sinew_harness::units::{self, parse_size};

/// Rule for requests whose memory is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterFrom {
    /// The size is measured at start.
    Measured,
    /// The user gave the rule.
    Fixed(RegistrationPolicy),
}

/// Parses the option, for clap.
pub fn parse(text: &str) -> Result<RegisterFrom, String> {
    match text {
        "measured" => Ok(RegisterFrom::Measured),
        "never" => Ok(RegisterFrom::Fixed(RegistrationPolicy::Never)),
        "always" => Ok(RegisterFrom::Fixed(RegistrationPolicy::Always)),
        _ => parse_size(text)
            .map(|len| RegisterFrom::Fixed(RegistrationPolicy::From(len)))
            .map_err(|error| format!("{error}; or measured, never, or always")),
    }
}

/// The rule for requests, and the measurement that led to it.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub registering: RegistrationPolicy,
    pub measured: Option<CostCurve>,
}

impl RegisterFrom {
    /// Measures the size, if that was asked for.
    pub fn choose(self, domain: &impl ProtectionDomain) -> anyhow::Result<Chosen> {
        match self {
            Self::Fixed(registering) => Ok(Chosen { registering, measured: None }),
            Self::Measured => {
                let measured = CostCurve::of_domain(domain, &HostClock::new(), CostCurve::ROUNDS_AT_START);
                let measured = measured.context(
                    "measuring the size from which memory is registered; give it with --register-from instead",
                )?;
                Ok(Chosen { registering: measured.policy(), measured: Some(measured) })
            }
        }
    }
}

impl Chosen {
    /// The rule as a sentence.
    pub fn sentence(&self) -> String {
        let how = if self.measured.is_some() { "as measured at start" } else { "as asked for" };
        match self.registering.threshold() {
            None => format!("Memory that is not registered yet is copied, {how}."),
            Some(least) => format!(
                "Requests of {} or more register memory that is not registered yet, and shorter ones copy it, {how}.",
                units::size(least)
            ),
        }
    }

    /// The rule and the measurement, as JSON.
    pub fn details(&self) -> Value {
        let costs = self.measured.iter().flat_map(|curve| &curve.costs);
        let costs =
            costs.map(|cost| json!({ "bytes": cost.len, "register_ns": cost.register_ns, "copy_ns": cost.copy_ns }));
        json!({ "from_bytes": self.registering.threshold(), "measured": costs.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use sinew::fabric::verbs::Device;
    use sinew::shm::verbs::ShmDevice;

    use super::*;

    #[test]
    fn a_threshold_is_measured_or_said() {
        assert_eq!(parse("measured"), Ok(RegisterFrom::Measured));
        assert_eq!(parse("never"), Ok(RegisterFrom::Fixed(RegistrationPolicy::Never)));
        assert_eq!(parse("928K"), Ok(RegisterFrom::Fixed(RegistrationPolicy::PAPER)));
        assert!(parse("some").unwrap_err().contains("measured"));
    }

    #[test]
    fn what_was_chosen_is_told_with_what_was_measured() {
        let fixed = Chosen { registering: RegistrationPolicy::Never, measured: None };
        assert!(fixed.sentence().contains("copied") && fixed.details()["from_bytes"].is_null());
        let domain = ShmDevice::threads().unwrap().protection_domain().unwrap();
        let measured = RegisterFrom::Measured.choose(&domain).unwrap();
        assert_eq!(measured.details()["measured"].as_array().map(Vec::len), Some(11));
        assert!(measured.sentence().contains("as measured at start"));
    }
}
