//! Answers questions from passages, and cites the passages.
//!
//! The first available author answers: the model that the operator configured, the client's own model, or quotations of
//! the passages. `prompt.rs` has the instructions for a model, and `citations.rs` removes false citations from its
//! answer.

mod citations;
mod prompt;
mod sampling;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{model::Hit, remote::Generator};
use countersign_domain::text::shorten;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, text::one_line};

/// The maximum number of characters of a quoted passage.
const MAX_QUOTE_CHARS: usize = 1200;
/// The maximum number of characters of a passage in a prompt.
const MAX_PROMPT_PASSAGE_CHARS: usize = 4000;
/// The maximum number of characters of a model's answer.
const MAX_ANSWER_CHARS: usize = 20_000;

/// The way in which an answer was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AnswerMode {
    // The configured model wrote the answer.
    Generated,
    // The client's own model wrote the answer.
    Sampled,
    // The answer quotes the documents.
    Extractive,
    // No document is relevant enough.
    None,
}

/// An answer to a question.
#[derive(Debug)]
pub(crate) struct Answer {
    pub text: String,
    pub mode: AnswerMode,
    /// The reason why a preferred model did not answer.
    pub note: Option<String>,
}

/// Returns the passage of a source as it is shown to a model.
fn prompt_text(source: &Hit) -> String {
    shorten(&source.passage.text, MAX_PROMPT_PASSAGE_CHARS)
}

/// Answers a query from the passages. `generator` is the configured model.
///
/// # Errors
/// `CANCELLED`
pub(crate) async fn answer_query(
    generator: Option<&Generator>,
    query: &str,
    sources: &[Hit],
    ctx: &CallContext,
) -> Result<Answer, McpError> {
    if sources.is_empty() {
        let text = "Nothing in the documents is relevant enough to answer this.".to_owned();
        return Ok(Answer { text, mode: AnswerMode::None, note: None });
    }
    let mut note = None;
    let user = prompt::user_prompt(query, sources);
    if let Some(generator) = generator {
        match generator.answer(prompt::SYSTEM_PROMPT, &user, &ctx.cancel).await {
            Ok(text) => match citations::sanitize(&shorten(&text, MAX_ANSWER_CHARS), sources) {
                Some(text) => return Ok(Answer { text, mode: AnswerMode::Generated, note }),
                None => note = Some(discarded_answer_note("gateway")),
            },
            Err(error) if ctx.cancel.is_cancelled() => {
                return Err(McpError::new(ErrorKind::Cancelled, error.to_string()));
            }
            Err(error) => {
                tracing::warn!(%error, "the model for answers failed");
                note = Some("The gateway's model for answers did not answer.".to_owned());
            }
        }
    }
    if let Some(inquirer) = ctx.inquirer.as_ref().filter(|inquirer| inquirer.capabilities().sampling) {
        match sampling::ask_client_model(&**inquirer, &user, &ctx.cancel).await {
            Ok(text) => match citations::sanitize(&shorten(&text, MAX_ANSWER_CHARS), sources) {
                Some(text) => return Ok(Answer { text, mode: AnswerMode::Sampled, note }),
                None => note = Some(discarded_answer_note("client")),
            },
            Err(reason) => note = Some(format!("The client's model was not used: {}.", one_line(&reason, 200))),
        }
    }
    Ok(Answer { text: quote_passages(sources), mode: AnswerMode::Extractive, note })
}

/// Explains that an answer could not be cleaned in [`citations::sanitize`].
fn discarded_answer_note(owner: &str) -> String {
    format!(
        "The answer of the {owner}'s model names too many addresses that no document contains, so it was discarded."
    )
}

/// Quotes the passages themselves as the answer.
fn quote_passages(sources: &[Hit]) -> String {
    let quotes = sources.iter().enumerate().map(|(index, source)| {
        let Hit { title, path, passage, .. } = source;
        let source_line = format!("{} ({}, {})", one_line(title, 200), one_line(path, 200), passage.line_range());
        let text = shorten(&passage.text, MAX_QUOTE_CHARS);
        let text: Vec<String> = text.lines().map(|line| format!("> {line}")).collect();
        format!("[{}] {source_line}:\n{}", index + 1, text.join("\n"))
    });
    quotes.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests;
