//! Answers the question by which a server asks to confirm a call, if the recipe of the approved change says so.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::{alternatives::select_alternative, expressions, fault::Fault};
use crate::{Inquirer, request::UpstreamRequest};
use countersign_domain::{
    changes::visible::escape_hidden,
    questions::{ELICITATION, is_url_elicitation},
    recipes::{Confirmation, Pattern, Recipe},
    text::truncate,
};
use countersign_protocol::{
    json::{member, string},
    negotiate::ClientCapabilities,
    rpc_error::RpcError,
};

/// Maximum characters of a question in an error.
const MAX_QUESTION_CHARS: usize = 300;

/// Answers one question of a running change, and passes on or declines all others.
pub struct ConfirmingInquirer {
    question: Pattern,
    answer: Box<RawValue>,
    capabilities: ClientCapabilities,
    is_answered: AtomicBool,
    declined_question: OnceLock<String>,
    /// Receives the other questions.
    next: Option<Arc<dyn Inquirer>>,
}

impl ConfirmingInquirer {
    /// Returns the inquirer for a call whose reviewer saw how its question is answered, or `None` if its recipe answers
    /// none.
    pub fn for_call(recipe: &Recipe, arguments: &RawValue, next: Option<Arc<dyn Inquirer>>) -> Option<Self> {
        let parsed = expressions::parse_arguments(arguments.get()).ok()?;
        let confirmation = select_alternative(recipe, &parsed).ok()?.recipe.confirm.as_ref()?;
        let answer = to_raw_value(&answer_to(confirmation, &parsed).ok()?).ok()?;
        let capabilities = next.as_ref().map(|next| next.capabilities().clone()).unwrap_or_default();
        Some(Self {
            question: confirmation.question.clone(),
            answer,
            capabilities: ClientCapabilities { elicitation_form: true, ..capabilities },
            is_answered: AtomicBool::new(false),
            declined_question: OnceLock::new(),
            next,
        })
    }

    /// Returns the first question that nobody answered.
    pub fn declined_question(&self) -> Option<&str> {
        self.declined_question.get().map(String::as_str)
    }
}

impl Inquirer for ConfirmingInquirer {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn ask(&self, question: UpstreamRequest) {
        let params = question.params.as_deref().map_or("{}", RawValue::get);
        let message = member(params, "message").and_then(string).unwrap_or_default().into_owned();
        let is_form = question.method == ELICITATION && !is_url_elicitation(ELICITATION, Some(params));
        if is_form && self.question.0.is_match(&message) && !self.is_answered.swap(true, Ordering::AcqRel) {
            return question.reply.answer(Ok(self.answer.clone()));
        }
        if let Some(next) = &self.next {
            return next.ask(question);
        }
        let asked = if message.is_empty() { &question.method } else { &message };
        let error_message = format!("it asks: {}", escape_hidden(truncate(asked, MAX_QUESTION_CHARS)));
        self.declined_question.get_or_init(|| error_message.clone());
        question.reply.answer(Err(RpcError::new(-32601, error_message)));
    }
}

/// Returns the answer to the server's question.
fn answer_to(confirmation: &Confirmation, arguments: &cel::Value) -> Result<Value, Fault> {
    let content = expressions::render_fields(&confirmation.answer, &[("arguments", arguments)])?;
    Ok(json!({ "action": "accept", "content": content }))
}

/// Describes for reviewers whether and how a question of the server is answered.
pub(super) fn describe(
    confirmation: &Confirmation,
    is_answered: bool,
    arguments: &cel::Value,
) -> Result<String, Fault> {
    let question = confirmation.question.0.as_str();
    if !is_answered {
        return Ok(format!(
            "A question that matches /{question}/ is not answered: accept the tool, or name its recipe in `previews`"
        ));
    }
    let content = expressions::render_fields(&confirmation.answer, &[("arguments", arguments)])?;
    Ok(format!(
        "If the server asks a question that matches /{question}/, the answer is: accept {}",
        Value::Object(content)
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::request::Replier;
    use countersign_domain::recipes::{RecordField, TextTemplate};
    use countersign_protocol::RequestId;

    type Answers = Arc<Mutex<Vec<Result<String, String>>>>;

    fn inquirer() -> ConfirmingInquirer {
        let value = TextTemplate::compile("arguments.repo", &[("arguments", &[])]).unwrap();
        let confirm = Confirmation {
            question: Pattern::new("^Delete .*\\?$").unwrap(),
            answer: vec![RecordField { name: "name".into(), is_optional: false, value }],
            is_trusted: true,
        };
        let recipe = Recipe { confirm: Some(confirm), ..Recipe::default() };
        let arguments = RawValue::from_string(r#"{"repo":"r"}"#.into()).unwrap();
        ConfirmingInquirer::for_call(&recipe, &arguments, None).unwrap()
    }

    fn ask(inquirer: &ConfirmingInquirer, method: &str, params: &str, answers: &Answers) {
        let answers = Arc::clone(answers);
        inquirer.ask(UpstreamRequest {
            id: RequestId::from_raw("1"),
            method: method.to_owned(),
            params: Some(RawValue::from_string(params.to_owned()).unwrap()),
            reply: Replier::new(move |answer| {
                let answer = answer.map(|raw| raw.get().to_owned()).map_err(|error| error.message.to_string());
                answers.lock().unwrap().push(answer);
            }),
            cancelled: CancellationToken::new(),
        });
    }

    #[test]
    fn matching_question_is_answered_once() {
        let inquirer = inquirer();
        assert!(inquirer.capabilities().elicitation_form);
        let answers = Answers::default();
        ask(&inquirer, "sampling/createMessage", r#"{"message":"Delete r?"}"#, &answers);
        ask(&inquirer, ELICITATION, r#"{"mode":"url","message":"Delete r?","url":"https://x.example"}"#, &answers);
        ask(&inquirer, ELICITATION, r#"{"message":"Delete r?"}"#, &answers);
        ask(&inquirer, ELICITATION, r#"{"message":"Delete r?"}"#, &answers);
        ask(&inquirer, ELICITATION, r#"{"message":"Really?"}"#, &answers);
        let answers = answers.lock().unwrap();
        assert_eq!(answers[2], Ok(r#"{"action":"accept","content":{"name":"r"}}"#.to_owned()));
        assert!(answers[0].is_err() && answers[1].is_err() && answers[3].is_err(), "{answers:?}");
        assert_eq!(answers[4], Err("it asks: Really?".to_owned()));
        assert_eq!(inquirer.declined_question(), Some("it asks: Delete r?"));
    }
}
