//! Worth of a cached block by the tier where it lies.

use stator_protos::kv_event::Medium;

/// Worth of a block in each tier against one on the device, each 0 to 1.
///
/// Source: the default weights are those of the llm-d router's precise prefix scorer, which knows
/// the first two; the others are the placement core's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierWeights {
    /// On the device; 1.0 by default.
    pub device: f64,
    /// In host memory; 0.8 by default.
    pub host: f64,
    /// In storage that several nodes share; 0.5 by default.
    pub remote: f64,
    /// On a local disk; 0.25 by default.
    pub disk: f64,
}

impl Default for TierWeights {
    fn default() -> Self {
        Self { device: 1.0, host: 0.8, remote: 0.5, disk: 0.25 }
    }
}

impl TierWeights {
    /// The weight of a tier.
    pub fn of(&self, tier: Medium) -> f64 {
        match tier {
            Medium::Device => self.device,
            Medium::Host => self.host,
            Medium::Remote => self.remote,
            Medium::Disk => self.disk,
        }
    }

    /// Sets the weight of the tier that engines mean by `name`, in letters of any case. False,
    /// and without effect, if no engine is known to say so.
    pub fn set(&mut self, name: &str, weight: f64) -> bool {
        let tier = match Medium::of_engine(name) {
            Some(Medium::Device) => &mut self.device,
            Some(Medium::Host) => &mut self.host,
            Some(Medium::Remote) => &mut self.remote,
            Some(Medium::Disk) => &mut self.disk,
            None => return false,
        };
        *tier = weight;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_known_by_the_names_that_engines_have_for_them() {
        let mut weights = TierWeights::default();
        for (name, weight) in [("gpu", 0.9), ("CPU", 0.4), ("Disk", 0.2), ("shared", 0.1)] {
            assert!(weights.set(name, weight), "{name}");
        }
        let known = TierWeights { device: 0.9, host: 0.4, remote: 0.1, disk: 0.2 };
        assert!(!weights.set("tape", 1.0));
        assert_eq!(weights, known);
        assert_eq!(Medium::ALL.map(|tier| weights.of(tier)), [0.9, 0.4, 0.2, 0.1]);
    }
}
