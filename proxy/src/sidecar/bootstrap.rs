//! Look-ups before a hand-over. The server beside an engine that computes prompts says which engine
//! it is and which ranks it has; MoRI-IO's engines are where the configuration says.

use super::handover::Handover;
use super::unusable::Unusable;
use crate::upstream::headers;
use crate::upstream::target::Target;
use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderValue};
use pingora::http::RequestHeader;
use stator_handover::bootstrap::{QUERY, ROUTE, data_parallel_size, engines};
use stator_handover::moriio::{Hosts, Meeting};
use stator_handover::{Connector, DpRank, Pair};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Longest answer of a bootstrap server.
const ANSWER_MAX_BYTES: usize = 1 << 20;
/// Longest wait for the ranks of an engine of SGLang: a hand-over can do without.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(1);

impl Handover {
    /// The engine and its rank behind a prefill address, and a name for this hand-over.
    pub(super) async fn rendezvous(&self, prefiller: &Target) -> Result<Pair, Unusable> {
        let pair = self.pair(prefiller);
        match self.settings.connector {
            Connector::Mooncake => {
                let (rank, engine_id) = self.within(self.engine_behind(prefiller)).await?;
                Ok(Pair { rank: Some(rank), engine_id, ..pair })
            }
            Connector::Sglang => {
                let count = self.ranks_behind(prefiller).await;
                let index = rand::random_range(0..count);
                Ok(Pair { rank: (count > 1).then_some(DpRank { index, count }), ..pair })
            }
            Connector::Moriio => Ok(Pair { rank: self.meeting(&pair).1, ..pair }),
            Connector::MoriioWrite | Connector::MoriioParallel => {
                let (meeting, rank) = self.meeting(&pair);
                let meeting = Meeting { hosts: self.whereabouts().await?, ..meeting };
                Ok(Pair { rank, meeting, ..pair })
            }
            _ => Ok(pair),
        }
    }

    /// Parameters of a hand-over over MoRI-IO, but for the hosts, and the rank behind its port.
    fn meeting(&self, pair: &Pair) -> (Meeting, Option<DpRank>) {
        let setup = self.settings.moriio.setup;
        let rank = (pair.id % u128::from(setup.ranks.max(1))) as u16;
        // Other versions look for how it begins.
        let transfer_id = format!("tx{:032x}", pair.id);
        (Meeting { setup, rank, transfer_id, ..Meeting::default() }, setup.behind(rank))
    }

    /// Looks up where MoRI-IO's engines are, so that no request has to wait for it.
    pub(super) async fn meet(&self) {
        let writes = [Connector::MoriioWrite, Connector::MoriioParallel];
        if writes.contains(&self.settings.connector)
            && let Err(error) = self.whereabouts().await
        {
            tracing::warn!(%error, "prompts are not handed over before it is found");
        }
    }

    /// The addresses that MoRI-IO's engines have now.
    async fn whereabouts(&self) -> Result<Hosts, Unusable> {
        let Hosts { own, prefill, decode } = &self.settings.moriio.hosts;
        let unknown = |host| Unusable::NoAddress { host };
        Ok(Hosts {
            own: self.names.address(own).await.ok_or_else(|| unknown(own.clone()))?,
            prefill: self.names.addresses(prefill).await.map_err(unknown)?,
            decode: self.names.addresses(decode).await.map_err(unknown)?,
        })
    }

    /// Asks each time: an engine has another name after a restart.
    async fn engine_behind(&self, prefiller: &Target) -> Result<(DpRank, String), Unusable> {
        let ranks = engines(&self.bootstrap(prefiller, QUERY).await?.1);
        let at = rand::random_range(0..ranks.len().max(1));
        let count = ranks.last().map_or(0, |(last, _)| last.saturating_add(1));
        let engine = ranks.into_iter().nth(at);
        let engine = engine.map(|(index, id)| (DpRank { index, count }, id));
        engine.ok_or_else(|| Unusable::NoEngine { prefiller: prefiller.to_string() })
    }

    /// Asks now and then, because it costs the engine's own process time.
    async fn ranks_behind(&self, prefiller: &Target) -> u16 {
        if let Some(ranks) = self.ranks.get(prefiller, Instant::now()) {
            return ranks;
        }
        let limit = ROUTE_TIMEOUT.min(self.settings.timeout);
        let said = match timeout(limit, self.bootstrap(prefiller, ROUTE)).await {
            Ok(Ok((StatusCode::OK, answer))) => data_parallel_size(&answer),
            _ => None,
        };
        if said.is_none() {
            tracing::debug!(%prefiller, "a bootstrap server does not say what ranks there are");
        }
        let ranks = said.unwrap_or(1);
        self.ranks.insert(prefiller, Instant::now(), ranks);
        ranks
    }

    /// Asks the bootstrap server beside an engine.
    async fn bootstrap(
        &self,
        prefiller: &Target,
        path: &str,
    ) -> Result<(StatusCode, Bytes), Unusable> {
        let port = self.settings.bootstrap_port;
        let peer = self.engines.bootstrap(prefiller, port).await.map_err(Unusable::Prefill)?;
        let head = RequestHeader::build("GET", path.as_bytes(), None);
        let mut head = head.expect("a valid request line");
        let host = HeaderValue::from_str(&prefiller.url_host()).expect("hosts are plain text");
        headers::insert(&mut head, header::HOST, host);
        let sent = self.engines.send(&peer, &head, &Bytes::new()).await;
        let leg = sent.map_err(Unusable::Prefill)?;
        Ok((leg.head().status, self.whole(leg, ANSWER_MAX_BYTES).await?))
    }
}
