//! Processes of each engine, and lost connections that wait for their end.
//!
//! An engine whose connection is lost may still read and write slots of the arena: its scheduler
//! has asked its workers for copies. What it held is set apart until all processes of the engine
//! are dead, or its scheduler promises with another HELLO that no copy is under way.

use super::socket::EngineProcess;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Engines that are known at most: beyond, a process makes up ids.
const ENGINES_MAX: usize = 1024;

/// Known engines, and what lost ones held, as `T`.
#[derive(Debug)]
pub(super) struct Quarantine<T> {
    engines: FxHashMap<String, KnownEngine<T>>,
}

#[derive(Debug)]
struct KnownEngine<T> {
    processes: Vec<Arc<EngineProcess>>,
    promises: Vec<Promise>,
    held: Vec<(SchedulerId, T)>,
}

/// A scheduler that may come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchedulerId {
    /// Number of its process.
    pub(super) pid: u32,
    /// Random, one for each start of the process.
    pub(super) incarnation: [u8; 16],
}

/// No copy of a scheduler is under way that began under a connection with a lower number.
#[derive(Debug)]
struct Promise {
    by: SchedulerId,
    connection: u64,
}

impl<T> Default for Quarantine<T> {
    fn default() -> Self {
        Self { engines: FxHashMap::default() }
    }
}

impl<T> Quarantine<T> {
    /// A process belongs to an engine. `false`: there are too many engines.
    pub(super) fn join(&mut self, engine: &str, process: Arc<EngineProcess>) -> bool {
        if !self.engines.contains_key(engine) && self.engines.len() == ENGINES_MAX {
            return false;
        }
        let new = || KnownEngine { processes: Vec::new(), promises: Vec::new(), held: Vec::new() };
        let engine = self.engines.entry(engine.to_owned()).or_insert_with(new);
        engine.processes.retain(|known| !known.is_dead());
        // Of living processes, equal numbers are the same process.
        if !engine.processes.iter().any(|known| known.pid() == process.pid()) {
            engine.processes.push(process);
        }
        true
    }

    /// A scheduler promises that no copy of connections before this one is under way. What they
    /// held is free.
    pub(super) fn promise(&mut self, engine: &str, by: SchedulerId, connection: u64) -> Vec<T> {
        let Some(engine) = self.engines.get_mut(engine) else { return Vec::new() };
        engine.promises.retain(|promise| promise.by.pid != by.pid);
        engine.promises.push(Promise { by, connection });
        engine
            .held
            .extract_if(.., |(scheduler, _)| *scheduler == by)
            .map(|(_, what)| what)
            .collect()
    }

    /// A scheduler's connection is lost. `what` waits for the end of its engine, or comes back at
    /// once: the scheduler was faster to connect again than we were to see that it had gone.
    pub(super) fn lose(
        &mut self,
        engine: &str,
        by: SchedulerId,
        connection: u64,
        what: T,
    ) -> Option<T> {
        let Some(engine) = self.engines.get_mut(engine) else { return Some(what) };
        let is_promised = |promise: &Promise| promise.by == by && promise.connection > connection;
        if engine.promises.iter().any(is_promised) {
            return Some(what);
        }
        engine.held.push((by, what));
        None
    }

    /// Lost clients whose engines are dead now, and for which nobody else copies.
    pub(super) fn sweep(&mut self, is_busy: impl Fn(&str) -> bool) -> Vec<T> {
        let mut free = Vec::new();
        self.engines.retain(|name, engine| {
            engine.processes.retain(|process| !process.is_dead());
            if !engine.processes.is_empty() || is_busy(name) {
                return true;
            }
            free.extend(engine.held.drain(..).map(|(_, what)| what));
            false
        });
        free
    }

    /// Processes whose end something waits for.
    pub(super) fn awaited(&self) -> Vec<Arc<EngineProcess>> {
        let waiting = self.engines.values().filter(|engine| !engine.held.is_empty());
        waiting.flat_map(|engine| engine.processes.iter().cloned()).collect()
    }

    /// Number of lost connections in quarantine.
    pub(super) fn held(&self) -> usize {
        self.engines.values().map(|engine| engine.held.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, getpid, getppid};

    const SELF: SchedulerId = SchedulerId { pid: 1, incarnation: [1; 16] };

    fn engine() -> Quarantine<u8> {
        let mut quarantine = Quarantine::default();
        let process = EngineProcess::open(getpid()).unwrap();
        assert!(quarantine.join("a", Arc::new(process)));
        quarantine
    }

    #[test]
    fn what_is_lost_waits_for_the_promise_of_the_same_start() {
        let mut quarantine = engine();
        assert_eq!(quarantine.promise("a", SELF, 1), [0; 0]);
        assert_eq!(quarantine.lose("a", SELF, 1, 10), None);
        assert_eq!((quarantine.sweep(|_| false), quarantine.held()), (vec![], 1));
        let other = SchedulerId { incarnation: [2; 16], ..SELF };
        assert_eq!(quarantine.promise("a", other, 2), [0; 0]);
        assert_eq!(quarantine.promise("b", SELF, 3), [0; 0]);
        assert_eq!(quarantine.promise("a", SELF, 4), [10]);
        assert_eq!(quarantine.held(), 0);
    }

    #[test]
    fn a_loss_that_is_seen_after_the_promise_is_free_at_once() {
        let mut quarantine = engine();
        quarantine.promise("a", SELF, 1);
        quarantine.promise("a", SELF, 2);
        assert_eq!(quarantine.lose("a", SELF, 1, 10), Some(10));
        assert_eq!(quarantine.lose("a", SELF, 2, 11), None);
    }

    #[test]
    fn all_processes_of_an_engine_are_awaited_while_it_is_lost() {
        let mut quarantine = engine();
        let parent = getppid().unwrap_or(Pid::INIT);
        for pid in [parent, parent] {
            assert!(quarantine.join("a", Arc::new(EngineProcess::open(pid).unwrap())));
        }
        assert_eq!(quarantine.awaited().len(), 0);
        quarantine.lose("a", SELF, 1, 10);
        assert_eq!(quarantine.awaited().len(), 2);
    }

    #[test]
    fn what_is_lost_waits_for_copies_for_a_dead_engine() {
        let mut quarantine = engine();
        let known = quarantine.engines.get_mut("a").unwrap();
        known.processes.clear();
        assert_eq!(quarantine.lose("a", SELF, 1, 10), None);
        assert_eq!(quarantine.sweep(|engine| engine == "a"), [0; 0]);
        assert_eq!(quarantine.sweep(|engine| engine == "b"), [10]);
    }

    #[test]
    fn engines_are_bounded() {
        let mut quarantine = Quarantine::<u8>::default();
        let process = Arc::new(EngineProcess::open(getpid()).unwrap());
        for engine in 0..ENGINES_MAX {
            assert!(quarantine.join(&engine.to_string(), Arc::clone(&process)));
        }
        assert!(!quarantine.join("one more", Arc::clone(&process)));
        assert!(quarantine.join("0", process));
    }
}
