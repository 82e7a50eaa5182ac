//! An engine's load in the picker's terms.

use super::Mapping;
use stator_epp_scheduler::{CacheConfig, EngineLoad, Lora};
use stator_signals::page::{self, Adapters, Incomplete, PageLoad};
use std::sync::Arc;

/// Reads the pages of one endpoint, as [`page::Reader`] does.
#[derive(Debug)]
pub struct LoadReader {
    pages: page::Reader,
    load: EngineLoad,
}

impl LoadReader {
    /// A reader of the pages of an engine.
    pub fn new(mapping: Arc<Mapping>) -> Self {
        Self { pages: page::Reader::new(mapping), load: EngineLoad::default() }
    }

    /// Whether the engine could answer when the last page was read.
    pub fn is_awake(&self) -> bool {
        self.pages.is_awake()
    }

    /// Reads a page. `updated` of the load is not set.
    ///
    /// # Errors
    ///
    /// [`Incomplete`] where waiting requests, running requests or KV usage are not told though the
    /// engine is known to tell them.
    pub fn read(&mut self, page: &[u8]) -> Result<&EngineLoad, Incomplete> {
        let PageLoad { waiting, running, kv_usage, adapters, cache } = self.pages.read(page)?;
        let load = &mut self.load;
        (load.waiting, load.running, load.kv_usage) = (*waiting, *running, *kv_usage);
        load.cache =
            cache.map(|cache| CacheConfig { block_size: cache.block_size, blocks: cache.blocks });
        // They hardly ever change, and most endpoints have none.
        if !same(adapters.as_ref(), load.lora.as_ref()) {
            load.lora = adapters.clone().map(|adapters| {
                let Adapters { max, running, waiting } = adapters;
                Lora { max, running, waiting }
            });
        }
        Ok(load)
    }
}

fn same(adapters: Option<&Adapters>, lora: Option<&Lora>) -> bool {
    match (adapters, lora) {
        (None, None) => true,
        (Some(Adapters { max, running, waiting }), Some(lora)) => {
            (*max, running, waiting) == (lora.max, &lora.running, &lora.waiting)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::Mappings;
    use crate::scrape::tests::endpoint;

    fn page(running: u32, adapters: Option<&str>) -> String {
        let load = format!(
            "vllm:num_requests_waiting 1\nvllm:num_requests_running {running}\n\
            vllm:kv_cache_usage_perc 0.5\n\
            vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"100\"}} 1\n"
        );
        let info = adapters.map(|names| {
            let labels = format!("max_lora=\"2\",running_lora_adapters=\"{names}\"");
            format!("vllm:lora_requests_info{{{labels},waiting_lora_adapters=\"\"}} {running}\n")
        });
        load + &info.unwrap_or_default()
    }

    #[test]
    fn every_page_is_told_in_the_pickers_terms() {
        let mapping = Mappings::default().of(&endpoint("127.0.0.1:1", &[]));
        let mut reader = LoadReader::new(mapping);
        let mut check = |running: u32, adapters: &[&str]| {
            let lora = Lora {
                max: 2,
                running: adapters.iter().map(|name| (*name).to_owned()).collect(),
                waiting: Vec::new(),
            };
            let expected = EngineLoad {
                waiting: 1,
                running,
                kv_usage: 0.5,
                lora: Some(lora),
                cache: Some(CacheConfig { block_size: 16, blocks: 100 }),
                updated: None,
            };
            let page = page(running, Some(&adapters.join(",")));
            assert_eq!(reader.read(page.as_bytes()), Ok(&expected));
        };
        check(1, &["a"]);
        check(2, &["a"]);
        check(3, &["a", "b"]);
        check(4, &[]);
        assert!(reader.is_awake());
        assert_eq!(reader.read(b"").map(|_| ()), Err(Incomplete("waiting requests")));
    }

    #[test]
    fn an_engine_that_tells_of_no_adapters_has_none() {
        let mapping = Mappings::default().of(&endpoint("127.0.0.1:1", &[]));
        let load = LoadReader::new(mapping).read(page(1, None).as_bytes()).cloned();
        assert_eq!(load.map(|load| load.lora), Ok(None));
    }
}
