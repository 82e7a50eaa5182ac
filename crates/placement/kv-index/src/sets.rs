//! Sets of holders: each different one is stored once, and blocks name it by number.
//!
//! Many blocks have the same holders (all of a prompt that one worker ran, all of a system prompt
//! that everyone ran), so that there are thousands of times fewer sets than blocks. A set never
//! changes. It can be freed and its number and memory used anew; names carry a generation, and a
//! reader that finds it unchanged after copying has copied the set that it meant.

use crate::cell::SetRef;
use crate::pages::Pages;
use crate::sync::{AtomicU32, AtomicU64, Mutex, fence};
use rustc_hash::FxHashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const NUMBER_BITS: u32 = 22;
/// Sets beyond this many since the last collection ask for one.
const MIN_GROWTH: usize = 1024;
/// So do words beyond this part of all that memory allows.
const WORDS_PART: usize = 32;
/// Sets of up to 2^`CLASSES` elements can be stored.
const CLASSES: usize = 29;

impl SetRef {
    fn new(number: u32, generation: u32) -> Self {
        Self(generation << NUMBER_BITS | number)
    }

    /// Below 2^22, and used anew after the set is gone.
    pub(crate) fn number(self) -> u32 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }

    fn generation(self) -> u32 {
        self.0 >> NUMBER_BITS
    }
}

/// Location of a set's elements.
struct Header {
    /// Generation in the upper half, number of elements in the lower: none if the set is free.
    tag: AtomicU64,
    first_word: AtomicU32,
}

/// All sets.
pub(crate) struct Sets {
    headers: Pages<Header>,
    words: Pages<AtomicU32>,
    interner: Mutex<Interner>,
    wants_collection: AtomicBool,
    /// Finished collections.
    collections: AtomicU64,
    max_bytes: usize,
}

#[derive(Default)]
struct Interner {
    /// By content; where two contents have one hash, the later stands at the next free one.
    by_hash: FxHashMap<u64, u32>,
    known: Vec<Known>,
    free_numbers: Vec<u32>,
    free_words: [Vec<u32>; CLASSES],
    next_word: u32,
    live: Size,
    /// Live size after the last collection.
    kept: Size,
    /// Sets that there was no room for, since a collection made some.
    refused: usize,
    /// Number of the last collection.
    collection: u32,
    bytes: usize,
}

/// The interner's record of the set of one number.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Under which it stands.
    hash: u64,
    /// Number of elements: none if there is no set.
    len: u32,
    /// The last collection when it was asked for.
    asked: u32,
}

/// Number of sets, and of the words that they take.
#[derive(Clone, Copy, Default)]
struct Size {
    sets: usize,
    words: usize,
}

impl Sets {
    pub(crate) fn new(max_bytes: usize) -> Self {
        // Number 0 is the empty set, which has no header.
        let interner = Interner { known: vec![Known::default()], ..Interner::default() };
        Self {
            headers: Pages::default(),
            words: Pages::default(),
            interner: Mutex::new(interner),
            wants_collection: AtomicBool::new(false),
            collections: AtomicU64::new(0),
            max_bytes,
        }
    }

    /// Brings `out` to the elements of a set, in order. False if the set is gone; `out` is of no
    /// meaning then. Takes no lock.
    pub(crate) fn copy(&self, set: SetRef, out: &mut Vec<u32>) -> bool {
        out.clear();
        if set == SetRef::EMPTY {
            return true;
        }
        let Some(header) = self.headers.at(set.number()) else { return false };
        let tag = header.tag.load(Acquire);
        let len = tag as u32 as usize;
        if tag >> 32 != u64::from(set.generation()) || len == 0 {
            return false;
        }
        let words = self.words.from(header.first_word.load(Relaxed));
        let Some(words) = words.and_then(|words| words.get(..len)) else { return false };
        out.extend(words.iter().map(|word| word.load(Relaxed)));
        // Pairs with the fence of `store`: whoever read a word of a later set sees below that this
        // one was freed.
        fence(Acquire);
        header.tag.load(Relaxed) == tag
    }

    /// The name of a set with these elements, sorted. `None` if there is no room for it; after a
    /// collection there may be.
    pub(crate) fn intern(&self, elements: &[u32]) -> Option<SetRef> {
        if elements.is_empty() {
            return Some(SetRef::EMPTY);
        }
        let mut interner = self.interner.lock();
        let mut hash = elements.iter().fold(0u64, |sum, &element| sum.wrapping_add(mix(element)));
        while let Some(&number) = interner.by_hash.get(&hash) {
            if self.is(number, elements) {
                interner.known[number as usize].asked = interner.collection;
                return Some(self.name(number));
            }
            hash = hash.wrapping_add(1);
        }
        let made = self.store(&mut interner, elements, hash);
        // Where collecting frees nothing, doing so for every refused set would be a waste.
        let refused = interner.refused;
        interner.refused += usize::from(made.is_none());
        if self.has_grown(&interner) || made.is_none() && refused.is_multiple_of(MIN_GROWTH) {
            self.want_collection();
        }
        made
    }

    /// Collections so far. While their number stays, a name means one set or none.
    pub(crate) fn collections(&self) -> u64 {
        self.collections.load(Acquire)
    }

    /// Whether it is time for [`Sets::collect`].
    pub(crate) fn wants_collection(&self) -> bool {
        self.wants_collection.load(Relaxed)
    }

    /// Asks for [`Sets::collect`].
    pub(crate) fn want_collection(&self) {
        self.wants_collection.store(true, Relaxed);
    }

    fn has_grown(&self, Interner { live, kept, .. }: &Interner) -> bool {
        let many_words = self.max_bytes / size_of::<u32>() / WORDS_PART;
        live.sets >= 2 * kept.sets.max(MIN_GROWTH) || live.words >= 2 * kept.words.max(many_words)
    }

    /// Sets there are, and bytes that they take.
    pub(crate) fn size(&self) -> (usize, usize) {
        let interner = self.interner.lock();
        (interner.live.sets, interner.bytes)
    }

    fn name(&self, number: u32) -> SetRef {
        let tag = self.headers.at(number).map_or(0, |header| header.tag.load(Relaxed));
        SetRef::new(number, (tag >> 32) as u32)
    }

    fn is(&self, number: u32, elements: &[u32]) -> bool {
        let Some(header) = self.headers.at(number) else { return false };
        let len = header.tag.load(Relaxed) as u32 as usize;
        let words = self.words.from(header.first_word.load(Relaxed));
        len == elements.len()
            && words.is_some_and(|w| w.iter().zip(elements).all(|(w, &e)| w.load(Relaxed) == e))
    }

    /// Stores a new set.
    fn store(&self, interner: &mut Interner, elements: &[u32], hash: u64) -> Option<SetRef> {
        let number = match interner.free_numbers.last() {
            Some(&number) => number,
            None => u32::try_from(interner.known.len()).ok().filter(|n| *n < 1 << NUMBER_BITS)?,
        };
        let class = class(elements.len());
        let first_word = self.room(interner, class)?;
        if interner.free_numbers.pop().is_none() {
            interner.known.push(Known::default());
        }
        let (len, asked) = (elements.len() as u32, interner.collection);
        interner.known[number as usize] = Known { hash, len, asked };
        interner.by_hash.insert(hash, number);
        interner.live.sets += 1;
        interner.live.words += 1 << class;
        // What these words held before was freed before; see `copy`.
        fence(Release);
        let words = self.words.make(first_word, || AtomicU32::new(0));
        for (word, &element) in words.iter().zip(elements) {
            word.store(element, Relaxed);
        }
        let header = &self.headers.make(number, Header::free)[0];
        header.first_word.store(first_word, Relaxed);
        let generation = header.tag.load(Relaxed) >> 32;
        header.tag.store(generation << 32 | elements.len() as u64, Release);
        interner.bytes = self.bytes(interner);
        Some(SetRef::new(number, generation as u32))
    }

    /// Frees a set. Its name means nothing from here on.
    fn free(&self, interner: &mut Interner, number: u32) {
        let Known { hash, len, .. } = std::mem::take(&mut interner.known[number as usize]);
        let generation = (self.name(number).generation() + 1) & ((1 << (32 - NUMBER_BITS)) - 1);
        let header = &self.headers.make(number, Header::free)[0];
        header.tag.store(u64::from(generation) << 32, Relaxed);
        let class = class(len as usize);
        interner.free_words[class].push(header.first_word.load(Relaxed));
        interner.free_numbers.push(number);
        interner.by_hash.remove(&hash);
        interner.live.sets -= 1;
        interner.live.words -= 1 << class;
    }

    /// The first of 2^`class` free words, all in one page.
    fn room(&self, interner: &mut Interner, class: usize) -> Option<u32> {
        if let Some(first) = interner.free_words.get_mut(class)?.pop() {
            return Some(first);
        }
        self.unused(interner, class).or_else(|| interner.split(class))
    }

    /// Words that were never used, if memory allows.
    fn unused(&self, interner: &mut Interner, class: usize) -> Option<u32> {
        let size = 1 << class;
        loop {
            let first = interner.next_word;
            let left = Pages::<AtomicU32>::left(first);
            if left >= size {
                let is_new = self.words.at(first).is_none();
                if is_new && interner.bytes + 4 * left > self.max_bytes {
                    return None;
                }
                interner.next_word = first.checked_add(size as u32)?;
                return Some(first);
            }
            // Goes on in the next page; what is left of this one is for smaller sets.
            let rest = left.ilog2();
            interner.free_words[rest as usize].push(first);
            interner.next_word = first.checked_add(1 << rest)?;
        }
    }

    fn bytes(&self, interner: &Interner) -> usize {
        self.headers.len() * size_of::<Header>() + self.words.len() * 4 + interner.known.len() * 48
    }
}

impl Interner {
    /// Half of more words than are needed; the other half stays free.
    fn split(&mut self, class: usize) -> Option<u32> {
        let larger = (class + 1..CLASSES).find(|&larger| !self.free_words[larger].is_empty())?;
        let first = self.free_words[larger].pop()?;
        (class..larger).for_each(|half| self.free_words[half].push(first + (1 << half)));
        Some(first)
    }
}

impl Header {
    fn free() -> Self {
        Self { tag: AtomicU64::new(0), first_word: AtomicU32::new(0) }
    }
}

/// Sets are stored in room for the next power of two of elements.
fn class(len: usize) -> usize {
    len.next_power_of_two().ilog2() as usize
}

/// Spreads an element over 64 bits; the sum over a set names it, whatever the order.
fn mix(element: u32) -> u64 {
    let mixed = (u64::from(element) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

pub(crate) use collection::Collection;

mod collection;
#[cfg(all(test, stator_loom))]
mod model;
#[cfg(all(test, not(stator_loom)))]
mod tests;
