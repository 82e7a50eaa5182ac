//! A priority queue from which anything can be taken.

/// Children of a node: four keep the tree flat and lie side by side.
const ARITY: usize = 4;

/// A key of two parts, the first before the second, in one number that compares without branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u128);

impl Key {
    fn new(first: u64, second: u64) -> Self {
        Self(u128::from(first) << 64 | u128::from(second))
    }

    fn parts(self) -> (u64, u64) {
        ((self.0 >> 64) as u64, self.0 as u64)
    }
}

/// A heap of small numbers by their keys, the least key first; of equal keys any. The heap's owner
/// keeps each number's position in `at`.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    items: Vec<(Key, u32)>,
}

impl Heap {
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All numbers, in no order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + Clone {
        self.items.iter().map(|(_, number)| *number)
    }

    /// The least key and its number.
    pub(crate) fn first(&self) -> Option<((u64, u64), u32)> {
        self.items.first().map(|(key, number)| (key.parts(), *number))
    }

    pub(crate) fn push(&mut self, key: (u64, u64), number: u32, at: &mut [u32]) {
        self.items.push((Key::new(key.0, key.1), number));
        self.rise(self.items.len() - 1, at);
    }

    /// Takes out a number that is there.
    pub(crate) fn remove(&mut self, number: u32, at: &mut [u32]) {
        let position = at[number as usize] as usize;
        self.items.swap_remove(position);
        if position < self.items.len() {
            self.settle(position, at);
        }
    }

    /// Gives a number that is there another key.
    pub(crate) fn update(&mut self, key: (u64, u64), number: u32, at: &mut [u32]) {
        let position = at[number as usize] as usize;
        let key = Key::new(key.0, key.1);
        if self.items[position].0 != key {
            self.items[position].0 = key;
            self.settle(position, at);
        }
    }

    /// Gives memory back that a larger past has left behind.
    pub(crate) fn shrink(&mut self) {
        if self.items.capacity() > 4 * self.items.len() + 16 {
            self.items.shrink_to_fit();
        }
    }

    /// Bytes that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.items.capacity() * size_of::<(Key, u32)>()
    }

    fn settle(&mut self, position: usize, at: &mut [u32]) {
        if position > 0 && self.items[position].0 < self.items[parent(position)].0 {
            self.rise(position, at);
        } else {
            self.sink(position, at);
        }
    }

    fn rise(&mut self, mut position: usize, at: &mut [u32]) {
        let item = self.items[position];
        while position > 0 && item.0 < self.items[parent(position)].0 {
            self.place(position, self.items[parent(position)], at);
            position = parent(position);
        }
        self.place(position, item, at);
    }

    fn sink(&mut self, mut position: usize, at: &mut [u32]) {
        let item = self.items[position];
        loop {
            let first = position * ARITY + 1;
            let children = first..(first + ARITY).min(self.items.len());
            let Some(least) = children.min_by_key(|child| self.items[*child].0) else { break };
            if item.0 <= self.items[least].0 {
                break;
            }
            self.place(position, self.items[least], at);
            position = least;
        }
        self.place(position, item, at);
    }

    fn place(&mut self, position: usize, item: (Key, u32), at: &mut [u32]) {
        self.items[position] = item;
        at[item.1 as usize] = position as u32;
    }
}

fn parent(position: usize) -> usize {
    (position - 1) / ARITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u8),
        Remove(usize),
        Update(usize, u8),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => any::<u8>().prop_map(Step::Push),
            2 => any::<usize>().prop_map(Step::Remove),
            1 => (any::<usize>(), any::<u8>()).prop_map(|(at, key)| Step::Update(at, key)),
        ]
    }

    proptest! {
        /// The first is always the least of all, and every position is known.
        #[test]
        fn agrees_with_a_sorted_list(steps in vec(any_step(), 0..200)) {
            let (mut heap, mut model) = (Heap::default(), Vec::<((u64, u64), u32)>::new());
            let mut at = vec![u32::MAX; steps.len()];
            for (number, step) in steps.iter().enumerate() {
                match *step {
                    Step::Push(key) => {
                        let (key, number) = ((key.into(), number as u64), number as u32);
                        heap.push(key, number, &mut at);
                        model.push((key, number));
                    }
                    Step::Remove(index) if !model.is_empty() => {
                        let (_, number) = model.swap_remove(index % model.len());
                        heap.remove(number, &mut at);
                    }
                    Step::Update(index, key) if !model.is_empty() => {
                        let index = index % model.len();
                        model[index].0.0 = key.into();
                        heap.update(model[index].0, model[index].1, &mut at);
                    }
                    _ => {}
                }
                prop_assert_eq!(heap.first(), model.iter().min().copied());
                prop_assert_eq!(heap.len(), model.len());
                for (key, number) in &model {
                    let position = at[*number as usize] as usize;
                    prop_assert_eq!(heap.items[position], (Key::new(key.0, key.1), *number));
                }
            }
        }
    }
}
