//! OpenAI's Responses API.
//!
//! A request becomes the body of a chat, with the items of earlier responses before its own. An
//! answer is kept in a ledger of items, of which events, the final object and the stored copy are
//! views.
//!
//! Start reading at [`request`], then [`events`].

pub mod body;
mod call_form;
mod echo;
pub mod events;
mod items;
mod ledger;
mod references;
pub mod request;
mod seal;
mod tools;

pub use echo::RequestEcho;
pub use events::ResponseEvents;
pub use references::{MissingItem, named_responses, resolve, response_of};
pub use request::{ResponseForm, check, parse};
pub use seal::ThoughtSeal;
