//! From conversations to what engines take, and back: templates, tokenizers, tokens.
//!
//! Pure: a [`Model`] is built from the bytes of a model folder's files and answers questions about
//! text. Nothing here opens a file or a socket; the time is an argument.
//!
//! Start reading at [`Model`], then [`tokenizer`] and [`template`].

mod context;
mod detokenizer;
mod effort;
mod error;
mod fast_bpe;
mod files;
mod history;
mod jinja;
pub mod markup;
mod python;
mod segments;
mod stop;
mod strftime;
pub mod template;
pub mod tokenizer;
mod tokenizer_shape;
mod vocabulary;
mod word_cache;
mod words;

pub use detokenizer::Detokenizer;
pub use error::PromptError;
pub use markup::{FamilyChoice, MarkupChoice, ModelMarkup};
pub use stop::StopMatcher;
pub use tokenizer::Tokenizer;

use bytes::Bytes;
use stator_api::Conversation;
use stator_api::media::MediaPart;
use stator_markup::ThoughtRoom;
use stator_markup::families::ModelTraits;
use stator_protos::sampling::OpenSampling;
use stator_protos::worker::ThoughtLimit;
use std::borrow::Cow;
use std::time::SystemTime;
use template::ChatTemplate;

/// Why a model's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file without which nothing can be tokenized.
    #[error("the model has no {0}")]
    Missing(&'static str),
    /// A file that is not JSON.
    #[error("{name}: {source}")]
    Json {
        /// The file.
        name: &'static str,
        /// The fault.
        source: serde_json::Error,
    },
    /// A template that is not UTF-8 or does not compile.
    #[error("{0}")]
    Template(String),
    /// A `tokenizer.json` that cannot be used.
    #[error("tokenizer.json: {0}")]
    Tokenizer(String),
}

/// Text side of a model's files: its template, its tokenizer, its defaults. Shared by all requests,
/// never changed.
#[derive(Debug)]
pub struct Model {
    name: String,
    template: Option<ChatTemplate>,
    tokenizer: Tokenizer,
    eos_ids: Vec<u32>,
    context_length: Option<u32>,
    vocabulary_size: usize,
    sampling_defaults: OpenSampling,
    class_labels: Vec<String>,
    markup: ModelMarkup,
    /// Whether the template opens the thoughts that it wants: then none come that it did not open.
    opens_thoughts: bool,
}

impl Model {
    /// Builds a model from the files of its folder, as pairs of name and content. Used are
    /// `tokenizer.json`, and if they are there `tokenizer_config.json`, `special_tokens_map.json`,
    /// `chat_template.jinja`, `config.json` and `generation_config.json`.
    ///
    /// # Errors
    ///
    /// A file that is missing or cannot be used. A model without a chat template is no error: it
    /// refuses chats.
    pub fn load(name: &str, files: &[(String, Bytes)]) -> Result<Self, ModelError> {
        Self::load_with(name, files, MarkupChoice::default())
    }

    /// Loads a model as [`Model::load`] does, with the families of markup that an operator chose.
    ///
    /// # Errors
    ///
    /// The conditions of [`Model::load`].
    pub fn load_with(
        name: &str,
        files: &[(String, Bytes)],
        markup: MarkupChoice,
    ) -> Result<Self, ModelError> {
        let content = |wanted: &str| {
            files.iter().find(|(name, _)| name == wanted).map(|(_, content)| &content[..])
        };
        let tokenizer_json =
            content("tokenizer.json").ok_or(ModelError::Missing("tokenizer.json"))?;
        let tokenizer_config =
            files::json("tokenizer_config.json", content("tokenizer_config.json"))?;
        let tokens_map =
            files::json("special_tokens_map.json", content("special_tokens_map.json"))?;
        let config = files::json("config.json", content("config.json"))?;
        let generation_config =
            files::json("generation_config.json", content("generation_config.json"))?;
        let tokenizer = Tokenizer::new(tokenizer_json, tokenizer::CACHE_MAX_BYTES)
            .map_err(ModelError::Tokenizer)?;

        let special_tokens = files::special_tokens(&tokenizer_config, &tokens_map);
        let eos_token =
            special_tokens.iter().find(|(name, _)| name == "eos_token").map(|(_, token)| token);
        // End tokens are named in three files, rarely all in each: any of them ends an answer.
        let mut eos_ids = files::eos_ids(&generation_config);
        eos_ids.extend(files::eos_ids(&config));
        eos_ids.extend(eos_token.and_then(|token| tokenizer.token_to_id(token)));
        eos_ids.sort_unstable();
        eos_ids.dedup();

        let template_file = content("chat_template.jinja").map(std::str::from_utf8).transpose();
        let template_file = template_file
            .map_err(|error| ModelError::Template(format!("chat_template.jinja: {error}")))?;
        let templates = files::templates(&tokenizer_config, template_file);
        let sources: Vec<_> = templates.iter().map(|(_, source)| source.as_str()).collect();
        let sources = sources.join("\n");
        let model_type = config["model_type"].as_str().unwrap_or_default();
        let traits = ModelTraits { template: &sources, model_type };
        let markup = ModelMarkup::new(traits, markup, &tokenizer);
        let template = match templates.is_empty() {
            true => None,
            false => {
                Some(ChatTemplate::new(templates, special_tokens).map_err(ModelError::Template)?)
            }
        };
        let wanted = template.as_ref().and_then(ChatTemplate::prompt_for_thoughts);
        let opens_thoughts = wanted
            .zip(markup.reasoning())
            .is_some_and(|(prompt, family)| family.is_inside(&prompt));
        let config_vocabulary =
            config["vocab_size"].as_u64().or_else(|| config["text_config"]["vocab_size"].as_u64());
        Ok(Self {
            name: name.to_owned(),
            template,
            vocabulary_size: config_vocabulary
                .map_or_else(|| tokenizer.vocabulary_size(), |size| size as usize),
            tokenizer,
            eos_ids,
            context_length: files::context_length(&config, &tokenizer_config),
            sampling_defaults: files::sampling_defaults(&generation_config),
            class_labels: files::class_labels(&config),
            markup,
            opens_thoughts,
        })
    }

    /// The model with the context that its workers have, in the place of what its files say.
    #[must_use]
    pub fn with_context_length(mut self, tokens: u32) -> Self {
        self.context_length = Some(tokens);
        self
    }

    /// The name under which it is served.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tokens that end an answer, ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// Most tokens of a prompt and its answer, where a file says so.
    pub fn context_length(&self) -> Option<u32> {
        self.context_length
    }

    /// Token ids that are valid are below this.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// Sampling defaults that the model's authors recommend.
    pub fn sampling_defaults(&self) -> &OpenSampling {
        &self.sampling_defaults
    }

    /// Names of the classes that the model's head tells apart, in their order; none without a head.
    pub fn class_labels(&self) -> &[String] {
        &self.class_labels
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The prompt of a chat, as text. `now` is for templates that tell the date.
    ///
    /// # Errors
    ///
    /// [`PromptError`] where the model has no template, the conversation has parts that are no text, or
    /// the template refuses it.
    pub fn render_chat(
        &self,
        conversation: &Conversation<'_>,
        now: SystemTime,
    ) -> Result<String, PromptError> {
        let Some(template) = &self.template else {
            return Err(PromptError::NoTemplate { model: self.name.clone() });
        };
        if let Some(MediaPart { path, part_type, .. }) = conversation.media().next() {
            return Err(PromptError::Media { path: path.clone(), part_type });
        }
        let efforts = self.markup.reasoning().map_or(&[][..], |family| family.efforts);
        match effort::known(conversation, efforts)? {
            Some(conversation) => template.render(&conversation, now),
            None => template.render(conversation, now),
        }
    }

    /// The prompt of a chat, as tokens: rendered, then encoded.
    ///
    /// # Errors
    ///
    /// Those of [`Model::render_chat`] and [`Model::encode_prompt`].
    pub fn encode_chat(
        &self,
        conversation: &Conversation<'_>,
        now: SystemTime,
    ) -> Result<Vec<u32>, PromptError> {
        let text = self.render_chat(conversation, now)?;
        self.encode_prompt(&text, conversation.add_special_tokens)
    }

    /// The tokens of a text, with the tokenizer's special tokens if `add_special_tokens`.
    ///
    /// # Errors
    ///
    /// [`PromptError`] for a text that the tokenizer cannot express, or that is so long that it
    /// cannot fit the model's context whatever its tokens are.
    pub fn encode_prompt(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        // A text that cannot fit is not worth the time of counting its tokens.
        let fewest_tokens = self.tokenizer.fewest_tokens(text.len());
        if let Some(context) = self.context_length.map(|context| context as usize)
            && fewest_tokens > context
        {
            return Err(PromptError::TooLong { bytes: text.len(), fewest_tokens, context });
        }
        self.tokenizer.encode(text, add_special_tokens).map_err(PromptError::Tokenizer)
    }

    /// A detokenizer for one choice.
    pub fn detokenizer(&self, skip_special_tokens: bool) -> Detokenizer {
        Detokenizer::new(self.tokenizer.decoder(), skip_special_tokens)
    }

    /// The families that read the model's answers.
    pub fn markup(&self) -> &ModelMarkup {
        &self.markup
    }

    /// A detokenizer for one choice that is read for markup: markers stay in its text, those of
    /// calls with `tools`.
    pub fn markup_detokenizer(&self, tools: bool, skip_special_tokens: bool) -> Detokenizer {
        self.markup.detokenizer(&self.tokenizer, tools, skip_special_tokens)
    }

    /// Whether an answer to this prompt begins inside thoughts, which the prompt has opened.
    pub fn begins_inside_thoughts(&self, prompt: &[u32]) -> bool {
        self.markup.begins_inside(&self.tokenizer, prompt)
    }

    /// The message that a prompt has begun, for models that answer in messages: see
    /// [`stator_markup::OutputParser::going_on`].
    pub fn begun_message(&self, prompt: &[u32]) -> Option<String> {
        self.markup.begun_message(&self.tokenizer, prompt)
    }

    /// The thoughts that may come in an answer to this prompt, before what a form holds.
    pub fn thought_room(&self, prompt: &[u32]) -> ThoughtRoom {
        match self.markup.room(&self.tokenizer, prompt) {
            ThoughtRoom::Ahead(_) if self.opens_thoughts => ThoughtRoom::None,
            room => room,
        }
    }

    /// A bound of thoughts at `tokens` tokens, for an answer to this prompt, which may call tools if
    /// `tools`; none for a model whose thoughts no marker ends.
    pub fn thought_limit(&self, tokens: u32, prompt: &[u32], tools: bool) -> Option<ThoughtLimit> {
        let limit = self.markup.thought_limit(&self.tokenizer, tools)?;
        Some(ThoughtLimit { tokens, inside: self.begins_inside_thoughts(prompt), ..limit })
    }

    /// The bytes of one token, for logprobs; they need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        self.tokenizer.token_bytes(id)
    }
}

#[cfg(test)]
mod tests;
