//! Elements of a set of holders: a worker's slot and how that worker has the block.

use stator_protos::kv_event::Medium;

/// Bits of an element that say how the worker has the block.
const STATE_BITS: u32 = 3;
const PREDICTED: u32 = 4;
/// Slots are below this.
pub(crate) const MAX_SLOTS: u32 = 1 << 28;

/// State of a block at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderState {
    Reported(Medium),
    Predicted,
}

/// Change of a worker's share in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// It holds the block on this medium and on no other.
    Store(Medium),
    /// It holds the block no longer, if it was on this medium.
    Remove(Medium),
    /// It should hold the block.
    Predict,
    /// It need not hold the block any more.
    Unpredict,
}

impl Op {
    /// A number for each kind.
    #[inline]
    pub(crate) fn code(self) -> Code {
        Code(match self {
            Self::Store(medium) => medium as u8,
            Self::Remove(medium) => GOES | medium as u8,
            Self::Predict => PREDICTS,
            Self::Unpredict => PREDICTS | GOES,
        })
    }
}

/// An operation's number, below 16: what lanes are given, so that they need not look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(u8);

/// Bits of a code.
const GOES: u8 = 4;
const PREDICTS: u8 = 8;

impl Code {
    /// Bits that a code takes.
    pub(crate) const BITS: u32 = 4;

    /// Whether a block that nobody holds has a holder afterwards.
    #[inline]
    pub(crate) fn adds(self) -> bool {
        self.0 & GOES == 0
    }

    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0.into()
    }

    pub(crate) fn op(self) -> Op {
        let medium = Medium::ALL[usize::from(self.0 % GOES)];
        match (self.0 >= PREDICTS, self.adds()) {
            (false, true) => Op::Store(medium),
            (false, false) => Op::Remove(medium),
            (true, true) => Op::Predict,
            (true, false) => Op::Unpredict,
        }
    }
}

pub(crate) fn element(slot: u32, state: HolderState) -> u32 {
    let state = match state {
        HolderState::Reported(medium) => medium as u32,
        HolderState::Predicted => PREDICTED,
    };
    slot << STATE_BITS | state
}

pub(crate) fn slot(element: u32) -> u32 {
    element >> STATE_BITS
}

pub(crate) fn state(element: u32) -> HolderState {
    let state = element & ((1 << STATE_BITS) - 1);
    Medium::ALL
        .get(state as usize)
        .map_or(HolderState::Predicted, |&medium| HolderState::Reported(medium))
}

/// Medium of the worker's block: a predicted block is on the device.
#[inline]
pub(crate) fn medium(element: u32) -> Medium {
    // Of a predicted element the last bits are those of the device.
    Medium::ALL[(element % PREDICTED) as usize]
}

pub(crate) fn is_reported(element: u32) -> bool {
    matches!(state(element), HolderState::Reported(_))
}

/// Changes a sorted set; returns by how much the number of reported elements grew.
pub(crate) fn change(set: &mut Vec<u32>, slot: u32, op: Op) -> i32 {
    match op {
        Op::Store(medium) => {
            let before = reported(set, slot).inspect(|&at| {
                set.remove(at);
            });
            insert(set, element(slot, HolderState::Reported(medium)));
            i32::from(before.is_none())
        }
        Op::Remove(medium) => -i32::from(remove(set, element(slot, HolderState::Reported(medium)))),
        Op::Predict => {
            insert(set, element(slot, HolderState::Predicted));
            0
        }
        Op::Unpredict => {
            remove(set, element(slot, HolderState::Predicted));
            0
        }
    }
}

/// Position of a slot's reported element.
fn reported(set: &[u32], of: u32) -> Option<usize> {
    let at = set.partition_point(|&element| slot(element) < of);
    set.get(at).filter(|&&element| slot(element) == of && is_reported(element)).map(|_| at)
}

fn insert(set: &mut Vec<u32>, element: u32) {
    if let Err(at) = set.binary_search(&element) {
        set.insert(at, element);
    }
}

fn remove(set: &mut Vec<u32>, element: u32) -> bool {
    set.binary_search(&element).map(|at| set.remove(at)).is_ok()
}

#[cfg(all(test, not(stator_loom)))]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ops: &[(u32, Op)], expected: &[(u32, HolderState)]) {
        let (mut set, mut grown) = (Vec::new(), 0);
        for &(slot, op) in ops {
            grown += change(&mut set, slot, op);
        }
        let elements: Vec<u32> =
            expected.iter().map(|&(slot, state)| element(slot, state)).collect();
        assert_eq!(set, elements);
        assert_eq!(grown, set.iter().filter(|&&e| is_reported(e)).count() as i32);
    }

    #[test]
    fn a_code_says_which_operation_it_is() {
        let with = |op: fn(Medium) -> Op| Medium::ALL.map(op);
        let ops = [with(Op::Store), with(Op::Remove)].concat();
        for op in ops.into_iter().chain([Op::Predict, Op::Unpredict]) {
            let code = op.code();
            assert!(code.op() == op && code.number() < 1 << Code::BITS);
            assert_eq!(code.adds(), matches!(op, Op::Store(_) | Op::Predict));
        }
    }

    #[test]
    fn a_worker_holds_a_block_on_one_medium() {
        use {HolderState::*, Medium::*, Op::*};
        let device = (1, Reported(Device));
        check(&[(1, Store(Host)), (1, Store(Device)), (1, Remove(Host))], &[device]);
        check(&[(2, Store(Disk)), (1, Store(Device)), (2, Remove(Disk))], &[device]);
        check(&[(1, Remove(Device)), (0, Unpredict)], &[]);
        check(&[(1, Predict), (1, Store(Device)), (1, Unpredict)], &[device]);
        check(
            &[(1, Predict), (1, Predict), (1, Store(Host))],
            &[(1, Reported(Host)), (1, Predicted)],
        );
    }
}
