//! Plug-ins for pickers whose endpoints are whole clusters: what is learnt of their time to the
//! first token from the answers alone, with nothing scraped.

mod curve;
mod observer;
mod producer;
mod scorer;

pub(crate) use observer::LatencyObserver;
pub(crate) use producer::latency_observer;
pub(crate) use scorer::latency_observation;

#[cfg(test)]
mod tests;
