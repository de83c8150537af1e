//! Answers from passages, and the sources that they cite.
//!
//! Asked in this order: the model that the operator configured, the client's own, and else the passages themselves, which are
//! quoted. `prompt.rs` says what a model is told, `citations.rs` takes out of its answer what it was not given.

mod citations;
mod prompt;
mod sampling;

use std::sync::Arc;

use serde::Serialize;

use crate::{model::Hit, remote::Generator};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, text::one_line};

/// Characters of a passage that are quoted, and that a model is given.
const QUOTED: usize = 1200;
const GIVEN: usize = 4000;
/// Characters of a model's answer.
const ANSWER: usize = 20_000;

/// What an answer rests on.
#[derive(Debug)]
pub(crate) struct Source {
    pub hit: Hit,
}

/// Who wrote an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AnswerMode {
    /// The model that the operator configured.
    Generated,
    /// The client's own.
    Sampled,
    /// Nobody: the documents are quoted.
    Extractive,
    /// There is nothing to answer from.
    None,
}

#[derive(Debug)]
pub(crate) struct Answered {
    pub text: String,
    pub mode: AnswerMode,
    /// Why it was not somebody before in the order.
    pub note: Option<String>,
}

/// Writes answers.
#[derive(Clone)]
pub(crate) struct Answerer {
    pub generator: Option<Arc<Generator>>,
}

impl Source {
    pub fn of(hit: Hit) -> Self {
        Self { hit }
    }

    /// What a model is given of it.
    fn given(&self) -> String {
        cut(&self.hit.passage.text, GIVEN)
    }
}

fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
        None => text.to_owned(),
    }
}

impl Answerer {
    /// # Errors
    /// `CANCELLED`
    pub async fn answer(&self, query: &str, sources: &[Source], ctx: &CallContext) -> Result<Answered, McpError> {
        if sources.is_empty() {
            let text = "Nothing in the documents is relevant enough to answer this.".to_owned();
            return Ok(Answered { text, mode: AnswerMode::None, note: None });
        }
        let mut note = None;
        let user = prompt::user(query, sources);
        if let Some(generator) = &self.generator {
            match generator.answer(prompt::SYSTEM, &user, &ctx.cancel).await {
                Ok(text) => match citations::kept(&cut(&text, ANSWER), sources) {
                    Some(text) => return Ok(Answered { text, mode: AnswerMode::Generated, note }),
                    None => {
                        note = Some("The answer of the gateway's model was full of addresses and left out.".to_owned())
                    }
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
            match sampling::ask(&**inquirer, &user, &ctx.cancel).await {
                Ok(text) => match citations::kept(&cut(&text, ANSWER), sources) {
                    Some(text) => return Ok(Answered { text, mode: AnswerMode::Sampled, note }),
                    None => {
                        note = Some("The answer of the client's model was full of addresses and left out.".to_owned())
                    }
                },
                Err(why) => note = Some(format!("The client's model was not used: {}.", one_line(&why, 200))),
            }
        }
        Ok(Answered { text: quoted(sources), mode: AnswerMode::Extractive, note })
    }
}

/// The passages themselves.
fn quoted(sources: &[Source]) -> String {
    let quotes = sources.iter().enumerate().map(|(at, source)| {
        let Hit { title, path, passage, .. } = &source.hit;
        let place = format!(
            "{} ({}, lines {}–{})",
            one_line(title, 200),
            one_line(path, 200),
            passage.first_line,
            passage.last_line
        );
        let text = cut(&passage.text, QUOTED);
        let text: Vec<String> = text.lines().map(|line| format!("> {line}")).collect();
        format!("[{}] {place}:\n{}", at + 1, text.join("\n"))
    });
    quotes.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests;
