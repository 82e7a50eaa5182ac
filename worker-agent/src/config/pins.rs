//! Limits of what clients may pin.

use super::Faults;
use clap::Args;
use stator_pins::PinLimits;
use std::time::Duration;

/// Largest share: operators may keep as much, and requests need the rest.
const SHARE_MAX: u8 = 50;
/// Longest pin: a day.
const SECONDS_MAX: u32 = 86_400;

/// Flags of pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct PinArgs {
    /// Share of the KV blocks that clients may pin for a time (`nvext.cache_control`, and
    /// `cache_control` of Messages), 0 to 50 percent; 0 lets nobody pin. One tenant may pin half of it.
    /// Pins are made in the host memory of `--kv-host-gb`; without, a built-in or simulated engine
    /// pins in its own memory, and other engines pin nothing. A wish beyond the share is answered
    /// without a pin.
    #[arg(long, env = "STATOR_KV_PIN_SHARE_PERCENT", default_value_t = 25, value_name = "PERCENT")]
    pub kv_pin_share_percent: u8,

    /// Longest time of a client's pin, in seconds, 1 to 86400. A wish for longer has this time.
    #[arg(long, env = "STATOR_KV_PIN_MAX_S", default_value_t = 3600, value_name = "SECONDS")]
    pub kv_pin_max_s: u32,
}

impl PinArgs {
    /// The limits, and the faults of the flags.
    pub(super) fn limits(self, faults: &mut Faults) -> PinLimits {
        faults.range("kv-pin-share-percent", self.kv_pin_share_percent, 0, SHARE_MAX);
        faults.range("kv-pin-max-s", self.kv_pin_max_s, 1, SECONDS_MAX);
        PinLimits {
            share_percent: self.kv_pin_share_percent,
            time_max: Duration::from_secs(self.kv_pin_max_s.into()),
        }
    }
}
