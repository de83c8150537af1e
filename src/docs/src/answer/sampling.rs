//! Asks the client's own model (2025-11-25/client/sampling, 2026-07-28/client/sampling).

use serde_json::{Value, json, value::to_raw_value};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::prompt::SYSTEM_PROMPT;
use crate::remote::MAX_ANSWER_TOKENS;
use countersign_protocol::RequestId;
use countersign_provider::{
    Inquirer,
    request::{Replier, UpstreamRequest},
};

/// Returns the model's answer, or the reason why there is none.
pub(super) async fn ask_client_model(
    inquirer: &dyn Inquirer,
    prompt: &str,
    cancel: &CancellationToken,
) -> Result<String, String> {
    let params = json!({
        "messages": [{ "role": "user", "content": { "type": "text", "text": prompt } }],
        "systemPrompt": SYSTEM_PROMPT,
        "maxTokens": MAX_ANSWER_TOKENS,
    });
    let (reply, answer) = oneshot::channel();
    let reply = Replier::new(move |answer| drop(reply.send(answer)));
    // If the caller stops waiting, the question is cancelled.
    let cancelled = cancel.child_token();
    let _cancel_on_drop = cancelled.clone().drop_guard();
    inquirer.ask(UpstreamRequest {
        id: RequestId::from_raw("\"answer\""),
        method: "sampling/createMessage".to_owned(),
        params: to_raw_value(&params).ok(),
        reply,
        cancelled: cancelled.clone(),
    });
    let answer = tokio::select! {
        answer = answer => answer.map_err(|_| "it did not answer".to_owned())?.map_err(|error| error.message.to_string())?,
        () = cancel.cancelled() => return Err("the call was cancelled".to_owned()),
    };
    let answer: Value = answer.get().parse().map_err(|_| "its answer is not JSON".to_owned())?;
    let text = content_text(&answer["content"]);
    match text.trim() {
        "" => Err("its answer is empty".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// Joins the text of one block or several (2025-11-25/client/sampling, "Creating Messages").
fn content_text(content: &Value) -> String {
    match content {
        Value::Array(blocks) => blocks.iter().map(content_text).collect::<Vec<_>>().join(""),
        block => block["text"].as_str().unwrap_or_default().to_owned(),
    }
}
