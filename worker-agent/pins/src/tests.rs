//! Tests of the account of pins.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MINUTE: Duration = Duration::from_secs(60);
const WISH: PinWish = PinWish { tenant: 1, time: MINUTE };

fn pins(share_percent: u8) -> ClientPins<u32, u32> {
    ClientPins::new(PinLimits { share_percent, ..PinLimits::default() })
}

/// Pins blocks of a store of 16 that has all of them, each in the place of its own number.
fn pin(
    pins: &mut ClientPins<u32, u32>,
    keys: std::ops::Range<u32>,
    wish: PinWish,
    now: Now,
) -> PinOutcome {
    pins.pin(&keys.collect::<Vec<_>>(), wish, 16, now, Some)
}

#[test]
fn clients_pin_their_share_and_one_tenant_half_of_it() {
    let mut pins = pins(50);
    let outcome = pin(&mut pins, 0..6, WISH, MINUTE);
    assert_eq!(outcome, PinOutcome { pinned: 4, refused: 2 });
    let other = |tenant| PinWish { tenant, ..WISH };
    assert_eq!(pin(&mut pins, 10..16, other(2), MINUTE).pinned, 4);
    assert_eq!(pin(&mut pins, 20..22, other(3), MINUTE), PinOutcome { pinned: 0, refused: 2 });
    // To pin what is pinned takes no further place.
    assert_eq!(pin(&mut pins, 0..4, other(3), MINUTE).pinned, 4);
    assert_eq!(pins.len(), 8);
    assert_eq!(pin(&mut self::pins(0), 0..1, WISH, MINUTE).pinned, 0);
}

#[test]
fn a_pin_ends_with_the_longest_wish_and_the_deepest_block_first() {
    let mut pins = pins(100);
    pin(&mut pins, 0..3, WISH, Duration::ZERO);
    pin(&mut pins, 0..1, PinWish { time: 3 * MINUTE, ..WISH }, Duration::ZERO);
    pin(&mut pins, 0..1, WISH, Duration::ZERO);
    assert_eq!(pins.first_ended(MINUTE / 2), None);
    let mut ended = Vec::new();
    while let Some(key) = pins.first_ended(2 * MINUTE) {
        ended.push((key, pins.remove(key)));
    }
    assert_eq!(ended, [(2, Some(2)), (1, Some(1))]);
    assert_eq!(pins.next_end(), Some(3 * MINUTE));
    // No wish is longer than the limit.
    pin(&mut pins, 5..6, PinWish { time: 1000 * MINUTE, ..WISH }, Duration::ZERO);
    pins.remove(0);
    assert_eq!(pins.next_end(), Some(60 * MINUTE));
}

#[test]
fn a_place_waits_for_its_block_and_not_for_ever() {
    let mut pins = pins(100);
    let hour = PinWish { time: 60 * MINUTE, ..WISH };
    assert_eq!(pins.pin(&[1, 2], hour, 16, MINUTE, |_| None).pinned, 2);
    assert!(pins.came(1, 7));
    assert!(!pins.came(1, 8), "it is held already");
    assert!(!pins.came(3, 8), "nobody pinned it");
    assert_eq!(pins.first_ended(MINUTE + AWAITED), Some(2));
    assert_eq!(pins.remove(2), None);
    assert_eq!(pins.next_end(), Some(61 * MINUTE));
    assert!(!pins.gone(1, 8) && pins.gone(1, 7));
    assert!(pins.is_empty() && pins.tenants.is_empty());
}

proptest! {
    /// Whatever is wished, comes and goes: the limits hold, and what is held is pinned.
    #[test]
    fn no_limit_is_broken(
        steps in prop::collection::vec((0..5_u8, 0..3_u64, 0..12_u32, 1..30_u64), 0..80),
    ) {
        let mut pins = pins(50);
        let mut held = BTreeMap::<u32, u32>::new();
        let mut now = Duration::ZERO;
        for (step, tenant, key, seconds) in steps {
            match step {
                0..=1 => {
                    let wish = PinWish { tenant, time: Duration::from_secs(seconds) };
                    let keys: Vec<_> = (0..=key).collect();
                    pins.pin(&keys, wish, 12, now, |key| {
                        (key % 2 == 0).then(|| { held.insert(key, key); key })
                    });
                }
                2 => if pins.came(key, key) { held.insert(key, key); },
                3 => if pins.gone(key, key) { held.remove(&key); },
                _ => {
                    now += Duration::from_secs(seconds);
                    while let Some(key) = pins.first_ended(now) {
                        prop_assert_eq!(pins.remove(key), held.remove(&key));
                    }
                }
            }
            prop_assert!(pins.len() <= 6);
            prop_assert!(pins.tenants.values().all(|own| (1..=3).contains(own)));
            prop_assert_eq!(pins.tenants.values().sum::<usize>(), pins.len());
            prop_assert_eq!(pins.ends.len(), pins.len());
            prop_assert!(held.keys().all(|key| pins.pins.contains_key(key)));
        }
    }
}
