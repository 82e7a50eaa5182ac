//! State of one pool, and the view that follows from it. Pure: reports in, views out.

use super::objects::Labels;
use super::resource::Group;
use crate::{Pod, PoolSpec, PoolView, Rewrite, Rewrites, endpoints_of};
use stator_epp_scheduler::Endpoint;
use stator_kube::Report;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// The label of a node that is its name.
///
/// Source: the well-known labels of Kubernetes.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// A report of one of a pool's followers.
#[derive(Debug)]
pub(crate) enum Update {
    /// The pool itself; only one has its name.
    Pool(Report<PoolSpec>),
    /// Pods of a [`PodWatch`], by its generation.
    Pods(u64, Report<Pod>),
    /// Nodes: the labels that endpoints carry.
    Nodes(Report<Labels>),
    /// Objectives.
    Objectives(Group, Report<i32>),
    /// Rewrites.
    Rewrites(Group, Report<Rewrite>),
}

/// A watch of pods that should be running.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodWatch {
    /// Tells apart the watches of different selectors.
    pub(crate) generation: u64,
    /// Latest spec of the pool while this watch was wanted.
    pub(crate) spec: PoolSpec,
    lost: Option<Instant>,
}

/// All that is known.
#[derive(Default)]
pub(crate) struct PoolState {
    pool: Table<PoolSpec>,
    /// The watch whose pods are in the view.
    current: Option<PodWatch>,
    /// The watch of the selector that the pool has now, until its pods are known.
    next: Option<PodWatch>,
    generations: u64,
    pods: BTreeMap<String, Pod>,
    /// Labels of nodes that endpoints carry, by node.
    nodes: Table<Labels>,
    /// Whether endpoints carry the name of their node as a label.
    node_names: bool,
    endpoints: BTreeMap<String, Vec<Arc<Endpoint>>>,
    objectives: BTreeMap<Group, Table<i32>>,
    rewrites: BTreeMap<Group, Table<Rewrite>>,
    /// Priorities by objective, from the tables above.
    priorities: Arc<BTreeMap<String, i32>>,
    compiled: Arc<Rewrites>,
}

impl PoolState {
    /// A pool that is described by an object; nothing is known yet.
    pub(crate) fn new() -> Self {
        let tables = || Group::ALL.map(|group| (group, Table::default()));
        Self {
            objectives: tables().into(),
            rewrites: Group::ALL.map(|group| (group, Table::default())).into(),
            ..Self::default()
        }
    }

    /// A pool that is described by the command line.
    pub(crate) fn standalone(spec: PoolSpec) -> Self {
        let mut state = Self::new();
        state.pool_is(Some(spec));
        state
    }

    /// Lets endpoints carry these labels of their nodes.
    pub(crate) fn with_node_labels(self, labels: &[String]) -> Self {
        Self { node_names: labels.iter().any(|label| label == HOSTNAME), ..self }
    }

    /// Takes note of a report.
    pub(crate) fn apply(&mut self, update: Update, now: Instant) {
        match update {
            Update::Pool(report) => {
                if self.pool.apply(report, now) {
                    self.pool_is(self.pool.entries.values().next().cloned());
                }
            }
            Update::Pods(generation, report) => self.pods(generation, report, now),
            Update::Nodes(report) => {
                if self.nodes.apply(report, now) {
                    self.derive_all();
                }
            }
            Update::Objectives(group, report) => {
                if self.objectives.entry(group).or_default().apply(report, now) {
                    self.priorities = Arc::new(merged(&self.objectives).0);
                }
            }
            Update::Rewrites(group, report) => {
                if self.rewrites.entry(group).or_default().apply(report, now) {
                    self.compiled = Arc::new(Rewrites::compile(merged(&self.rewrites).0.values()));
                }
            }
        }
    }

    /// The watches of pods that should be running now.
    pub(crate) fn pod_watches(&self) -> impl Iterator<Item = &PodWatch> {
        self.current.iter().chain(&self.next)
    }

    /// Names of policies that both API groups have.
    pub(crate) fn conflicts(&self) -> BTreeSet<String> {
        let mut names = merged(&self.objectives).1;
        names.extend(merged(&self.rewrites).1);
        names
    }

    /// The view of the pool as it is known.
    pub(crate) fn view(&self) -> PoolView {
        let mut endpoints: Vec<_> = self.endpoints.values().flatten().cloned().collect();
        endpoints.sort_unstable_by_key(|endpoint| endpoint.worker);
        let spec = self.current.as_ref().map(|watch| &watch.spec);
        // A request that comes before the policies would have the wrong priority or model.
        let answered = self.objectives.values().all(|table| table.answered)
            && self.rewrites.values().all(|table| table.answered);
        let lost = self.pod_watches().filter_map(|watch| watch.lost).chain(self.pool.lost).min();
        PoolView {
            endpoints,
            synced: spec.is_some() && answered,
            app_protocol: spec.map(|spec| spec.app_protocol).unwrap_or_default(),
            target_ports: spec.map(|spec| spec.target_ports.clone()).unwrap_or_default(),
            objectives: self.priorities.clone(),
            rewrites: self.compiled.clone(),
            stale_since: lost,
        }
    }

    /// The pool says something new. Pods of another selector are looked for beside those that
    /// are known, and replace them when they are known too.
    fn pool_is(&mut self, spec: Option<PoolSpec>) {
        let Some(spec) = spec else {
            (self.current, self.next) = (None, None);
            self.pods.clear();
            self.endpoints.clear();
            return;
        };
        let same = |watch: &&mut PodWatch| watch.spec.selector == spec.selector;
        if let Some(current) = self.current.as_mut().filter(same) {
            current.spec = spec;
            self.next = None;
            self.derive_all();
        } else if let Some(next) = self.next.as_mut().filter(same) {
            next.spec = spec;
        } else {
            self.generations += 1;
            self.next = Some(PodWatch { generation: self.generations, spec, lost: None });
        }
    }

    fn pods(&mut self, generation: u64, report: Report<Pod>, now: Instant) {
        let is_this = |watch: &PodWatch| watch.generation == generation;
        if matches!(report, Report::Listed(_)) && self.next.as_ref().is_some_and(is_this) {
            self.current = self.next.take();
        }
        let is_current = self.current.as_ref().is_some_and(is_this);
        let watch = if is_current { &mut self.current } else { &mut self.next };
        let Some(watch) = watch.as_mut().filter(|watch| is_this(watch)) else { return };
        match report {
            Report::Lost => watch.lost = watch.lost.or(Some(now)),
            Report::Found => watch.lost = None,
            Report::Listed(pods) => {
                self.pods = pods;
                self.derive_all();
            }
            // A watch says nothing before its list, but for what is wrong with it.
            Report::Set(name, pod) => {
                match pod {
                    Some(pod) => self.pods.insert(name.clone(), pod),
                    None => self.pods.remove(&name),
                };
                self.derive(&name);
            }
        }
    }

    /// The labels of a pod's endpoints: its own, and those of its node that it has not itself.
    fn labels(&self, pod: &Pod) -> Labels {
        let Some(node) = &pod.node else { return pod.labels.clone() };
        let of_node = self.nodes.entries.get(&**node).map(|labels| labels.iter());
        let name = (HOSTNAME.to_owned(), node.to_string());
        let named = self.node_names.then_some(name);
        let of_node =
            of_node.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
        let missing = |(name, _): &(String, String)| !pod.labels.contains_key(name);
        // The node's own word on its name comes after the pod's, and so counts.
        let mut added = named.into_iter().chain(of_node).filter(missing).peekable();
        if added.peek().is_none() {
            return pod.labels.clone();
        }
        let mut labels = BTreeMap::clone(&pod.labels);
        labels.extend(added);
        Arc::new(labels)
    }

    fn derive_all(&mut self) {
        self.endpoints.retain(|name, _| self.pods.contains_key(name));
        let names: Vec<_> = self.pods.keys().cloned().collect();
        names.iter().for_each(|name| self.derive(name));
    }

    /// The endpoints of a pod anew. Those that did not change stay the very same.
    fn derive(&mut self, name: &str) {
        let known = self.endpoints.remove(name).unwrap_or_default();
        let (Some(pod), Some(watch)) = (self.pods.get(name), &self.current) else { return };
        let pod = Pod { labels: self.labels(pod), ..pod.clone() };
        let same = |endpoint: Endpoint| {
            let known = known.iter().find(|known| ***known == endpoint);
            known.cloned().unwrap_or_else(|| Arc::new(endpoint))
        };
        let endpoints: Vec<_> = endpoints_of(&pod, &watch.spec).into_iter().map(same).collect();
        if !endpoints.is_empty() {
            self.endpoints.insert(name.to_owned(), endpoints);
        }
    }
}

/// Objects of one kind as far as they are known.
struct Table<T> {
    entries: BTreeMap<String, T>,
    /// Whether the server ever said what there is, or that it does not tell.
    answered: bool,
    lost: Option<Instant>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), answered: false, lost: None }
    }
}

impl<T: PartialEq> Table<T> {
    /// Takes note of a report; whether the entries changed.
    fn apply(&mut self, report: Report<T>, now: Instant) -> bool {
        self.answered |= matches!(report, Report::Listed(_) | Report::Lost);
        match report {
            Report::Lost => self.lost = self.lost.or(Some(now)),
            Report::Found => self.lost = None,
            Report::Listed(entries) => {
                let changed = self.entries != entries;
                self.entries = entries;
                return changed;
            }
            Report::Set(name, Some(entry)) => {
                let changed = self.entries.get(&name) != Some(&entry);
                self.entries.insert(name, entry);
                return changed;
            }
            Report::Set(name, None) => return self.entries.remove(&name).is_some(),
        }
        false
    }
}

/// The entries of all groups, and the names that more than one of them has. The first group wins.
fn merged<T: Clone>(tables: &BTreeMap<Group, Table<T>>) -> (BTreeMap<String, T>, BTreeSet<String>) {
    let (mut all, mut twice) = (BTreeMap::new(), BTreeSet::new());
    for (name, entry) in tables.values().flat_map(|table| &table.entries) {
        if all.contains_key(name) {
            twice.insert(name.clone());
        } else {
            all.insert(name.clone(), entry.clone());
        }
    }
    (all, twice)
}
