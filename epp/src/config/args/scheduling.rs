//! Flags of scheduling.

use clap::{ArgAction, Args};
use std::path::PathBuf;

/// The fewest and the most blocks that an index may have.
pub const INDEX_BLOCKS: (u64, u64) = (1_024, 1_000_000_000);

/// Flags of scheduling.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Scheduling")]
pub struct SchedulingArgs {
    /// EndpointPickerConfig to follow. Without one endpoints are chosen by cached prefix and load.
    #[arg(long, env = "STATOR_CONFIG_FILE", value_name = "FILE", conflicts_with = "config_text")]
    pub config_file: Option<PathBuf>,

    /// EndpointPickerConfig to follow, as text.
    #[arg(long, env = "STATOR_CONFIG_TEXT", value_name = "YAML")]
    pub config_text: Option<String>,

    /// Ignores settings of the EndpointPickerConfig that this version does not know.
    #[arg(long, env = "STATOR_LENIENT")]
    pub lenient: bool,

    /// Prints the effective EndpointPickerConfig, with what was filled in, and ends.
    #[arg(long, env = "STATOR_EXPLAIN")]
    pub explain: bool,

    /// Allows plug-ins that may still change.
    #[arg(long, env = "STATOR_ALLOW_EXPERIMENTAL_PLUGINS", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub allow_experimental_plugins: bool,

    /// Tokens per KV block, as the engines have it.
    #[arg(long, env = "STATOR_BLOCK_SIZE", default_value_t = 16, value_name = "TOKENS",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub block_size: u32,

    /// Most cached blocks that are known of all endpoints together, and as many predicted ones;
    /// the oldest go first. About 20 bytes each.
    #[arg(long, env = "STATOR_MAX_INDEX_BLOCKS", default_value_t = 4_194_304, value_name = "BLOCKS",
          value_parser = clap::value_parser!(u32).range(
              INDEX_BLOCKS.0 as i64..=INDEX_BLOCKS.1 as i64))]
    pub max_index_blocks: u32,

    /// Folder with the model's tokenizer and template. Without a tokenizer prompts are compared
    /// as text. Of several pools each may have its own, `namespace/name=folder`; one without a
    /// pool is for all others, and wrong for those that serve another model.
    #[arg(
        long,
        env = "STATOR_TOKENIZER_PATH",
        value_name = "[NAMESPACE/NAME=]DIR",
        value_delimiter = ','
    )]
    pub tokenizer_path: Vec<String>,

    /// Model whose tokenizer to use, `organisation/name`, from the hub's cache in `HF_HOME` or
    /// from the hub. For one pool of several as with --tokenizer-path.
    #[arg(
        long,
        env = "STATOR_TOKENIZER_MODEL",
        value_name = "[NAMESPACE/NAME=]MODEL",
        value_delimiter = ','
    )]
    pub tokenizer_model: Vec<String>,

    /// Address of the hub to download from. Without it nothing is downloaded.
    #[arg(long, env = "STATOR_HUB_ENDPOINT", value_name = "URL")]
    pub hub_endpoint: Option<String>,

    /// Sends token ids on in `nvext.token_data` to pods labelled `stator.dev/token-ids=true`.
    #[arg(long, env = "STATOR_FORWARD_TOKEN_IDS", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL")]
    pub forward_token_ids: bool,
}
