//! Steps of the random work, and prompts for it.

use super::SLOTS;
use crate::store::LoanTerms;
use crate::tier::{TierError, Urgency};
use proptest::collection::vec;
use proptest::prelude::*;
use stator_protos::name::BlockName;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Grant { owner: usize, wanted: usize },
    Fill { owner: usize, pick: usize, name: BlockName },
    Ask { owner: usize, request: u64, names: Vec<BlockName>, prefill_ms: u64 },
    Lend { owner: usize, request: u64, names: Vec<BlockName>, terms: LoanTerms },
    End { owner: usize, request: u64 },
    ReadAhead { names: Vec<BlockName>, prefill_ms: u64 },
    EndAhead { pick: usize },
    Touch { names: Vec<BlockName> },
    EndRead { pick: usize, error: Option<TierError> },
    EndWrite { pick: usize, error: Option<TierError> },
    Found { tier: u8, names: Vec<BlockName> },
    Gone { tier: u8, names: Vec<BlockName> },
    Odd { tier: u8, slot: u32, name: BlockName },
    Disconnect { owner: usize, is_dead: bool },
    Bury { pick: usize },
    Clear,
    ClearHost,
    ClearTier { tier: u8 },
    Keep { names: Vec<BlockName>, ms: u64 },
    Forget { names: Vec<BlockName> },
    Limit { slots: usize },
    Shrink { most: usize },
    Switch { tier: u8, is_on: bool },
    Wait { ms: u64 },
}

/// Four sequences that share their first two blocks.
pub(super) fn sequence(of: u128, len: usize) -> Vec<BlockName> {
    (0..len as u128).map(|at| BlockName(if at < 2 { at } else { 100 * (of + 1) + at })).collect()
}

fn any_names() -> impl Strategy<Value = Vec<BlockName>> {
    (0..4_u128, 0..9_usize).prop_map(|(of, len)| sequence(of, len))
}

fn any_name() -> impl Strategy<Value = BlockName> {
    (0..4_u128, 0..8_usize).prop_map(|(of, at)| sequence(of, at + 1)[at])
}

fn any_error() -> impl Strategy<Value = Option<TierError>> {
    let errors = [TierError::Missing, TierError::Corrupt, TierError::Busy, TierError::Full];
    prop_oneof![
        6 => Just(None),
        2 => proptest::sample::select(errors.to_vec()).prop_map(Some),
        1 => Just(Some(TierError::Failed)),
    ]
}

fn any_terms() -> impl Strategy<Value = LoanTerms> {
    let wait = prop::sample::select(vec![0, 20, 700, 9_000]).prop_map(Duration::from_millis);
    let urgency = prop::sample::select(vec![Urgency::Demand, Urgency::Prefetch]);
    (wait, 0..6_usize, urgency).prop_map(|(wait, reads_max, urgency)| LoanTerms {
        wait,
        reads_max,
        urgency,
    })
}

pub(super) fn any_step() -> impl Strategy<Value = Step> {
    let owner = 0..3_usize;
    let pick = any::<usize>();
    prop_oneof![
        3 => (owner.clone(), 1..4_usize).prop_map(|(owner, wanted)| Step::Grant { owner, wanted }),
        6 => (owner.clone(), pick, any_name())
            .prop_map(|(owner, pick, name)| Step::Fill { owner, pick, name }),
        6 => (owner.clone(), 0..4_u64, any_names(), prop::sample::select(vec![0, 1, 100]))
            .prop_map(|(owner, request, names, prefill_ms)| {
                Step::Ask { owner, request, names, prefill_ms }
            }),
        2 => (owner.clone(), 0..4_u64, any_names(), any_terms()).prop_map(
            |(owner, request, names, terms)| Step::Lend { owner, request, names, terms }
        ),
        4 => (owner.clone(), 0..4_u64).prop_map(|(owner, request)| Step::End { owner, request }),
        1 => (any_names(), prop::sample::select(vec![0, 1, 100]))
            .prop_map(|(names, prefill_ms)| Step::ReadAhead { names, prefill_ms }),
        1 => any::<usize>().prop_map(|pick| Step::EndAhead { pick }),
        1 => any_names().prop_map(|names| Step::Touch { names }),
        6 => (pick, any_error()).prop_map(|(pick, error)| Step::EndRead { pick, error }),
        5 => (pick, any_error()).prop_map(|(pick, error)| Step::EndWrite { pick, error }),
        2 => (0..2_u8, any_names()).prop_map(|(tier, names)| Step::Found { tier, names }),
        1 => (0..2_u8, vec(any_name(), 1..3)).prop_map(|(tier, names)| Step::Gone { tier, names }),
        1 => (0..3_u8, 0..SLOTS + 2, any_name())
            .prop_map(|(tier, slot, name)| Step::Odd { tier, slot, name }),
        1 => (owner, any::<bool>()).prop_map(|(owner, is_dead)| Step::Disconnect { owner, is_dead }),
        1 => pick.prop_map(|pick| Step::Bury { pick }),
        1 => Just(Step::Clear),
        1 => Just(Step::ClearHost),
        1 => (0..2_u8).prop_map(|tier| Step::ClearTier { tier }),
        2 => (any_names(), prop::sample::select(vec![1, 500, 30_000]))
            .prop_map(|(names, ms)| Step::Keep { names, ms }),
        1 => any_names().prop_map(|names| Step::Forget { names }),
        1 => (4..SLOTS as usize + 1).prop_map(|slots| Step::Limit { slots }),
        2 => (1..4_usize).prop_map(|most| Step::Shrink { most }),
        1 => (0..2_u8, any::<bool>()).prop_map(|(tier, is_on)| Step::Switch { tier, is_on }),
        2 => prop::sample::select(vec![1, 50, 2_000, 40_000]).prop_map(|ms| Step::Wait { ms }),
    ]
}
