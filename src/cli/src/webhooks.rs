//! `webhooks [list]|deliveries|retry|test`, over REST.

use serde::Deserialize;
use serde_json::json;

use super::{
    args::{WebhooksArgs, WebhooksCommand},
    client::{self, Client},
    exit::{Exit, Failure},
    output::{Output, Style, one_line, remark},
};

pub fn run(args: &WebhooksArgs, out: &mut Output) -> Result<Exit, Failure> {
    let target = client::target(&args.connect)?;
    actix_web::rt::System::new().block_on(async {
        let client = Client::new(target)?;
        let json = args.connect.json;
        match &args.command {
            None | Some(WebhooksCommand::List) => list(&client, json, out).await,
            Some(WebhooksCommand::Deliveries { name, limit }) => deliveries(&client, name, *limit, json, out).await,
            Some(WebhooksCommand::Retry { name }) => retry(&client, name, json, out).await,
            Some(WebhooksCommand::Test { name }) => test(&client, name, json, out).await,
        }
    })
}

#[derive(Deserialize)]
struct WebhookList {
    webhooks: Vec<Webhook>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Webhook {
    name: String,
    url: String,
    format: String,
    waiting: u64,
    failing: bool,
    last_error: Option<String>,
    next_attempt_at: Option<String>,
}

async fn list(client: &Client, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["webhooks"], &[]).await?;
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    let WebhookList { webhooks } = answer.read()?;
    if webhooks.is_empty() {
        remark("There are no webhooks; see `webhooks` in config/countersign.yaml.");
    }
    for webhook in &webhooks {
        let (style, word) = if webhook.failing { (Style::Red, "failing") } else { (Style::Green, "up") };
        out.styled(Style::Bold, &one_line(&webhook.name))?;
        out.text("  ")?;
        out.styled(style, word)?;
        out.line(&format!(
            "  {} to {}  {} waiting",
            one_line(&webhook.format),
            one_line(&webhook.url),
            webhook.waiting
        ))?;
        if let Some(error) = &webhook.last_error {
            out.styled(Style::Yellow, &format!("  ! {}", one_line(error)))?;
            let next = webhook.next_attempt_at.as_deref().map(|at| format!("  next attempt {}", one_line(at)));
            out.line(&next.unwrap_or_default())?;
        }
    }
    Ok(Exit::Ok)
}

#[derive(Deserialize)]
struct DeliveryPage {
    deliveries: Vec<Delivery>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delivery {
    id: u64,
    #[serde(rename = "type")]
    kind: String,
    subject: String,
    state: String,
    attempts: u32,
    error: Option<String>,
    taken_at: String,
}

async fn deliveries(client: &Client, name: &str, limit: u8, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["webhooks", name, "deliveries"], &[("limit", &limit.to_string())]).await?;
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    for delivery in &answer.read::<DeliveryPage>()?.deliveries {
        let style = match delivery.state.as_str() {
            "delivered" => Style::Green,
            "waiting" => Style::Yellow,
            _ => Style::Red,
        };
        out.text(&format!("{:>8}  {}  ", delivery.id, one_line(&delivery.taken_at)))?;
        out.styled(style, &format!("{:<9}", one_line(&delivery.state)))?;
        let times = if delivery.attempts == 1 { "attempt" } else { "attempts" };
        out.line(&format!(
            "  {}  {}  {} {times}{}",
            one_line(&delivery.kind),
            one_line(&delivery.subject),
            delivery.attempts,
            delivery.error.as_deref().map_or(String::new(), |error| format!("  {}", one_line(error)))
        ))?;
    }
    Ok(Exit::Ok)
}

async fn retry(client: &Client, name: &str, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    #[derive(Deserialize)]
    struct RetryResponse {
        again: u64,
    }
    let answer = client.post(&["webhooks", name, "retry"], &json!({})).await?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        let RetryResponse { again } = answer.read()?;
        out.line(&format!("Sending now what is queued; {again} given up before are tried again."))?;
    }
    Ok(Exit::Ok)
}

async fn test(client: &Client, name: &str, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    #[derive(Deserialize)]
    struct TestResponse {
        delivered: bool,
        status: Option<u16>,
        error: Option<String>,
    }
    let answer = client.post(&["webhooks", name, "test"], &json!({})).await?;
    let tested: TestResponse = answer.read()?;
    if json {
        out.json(&answer.json_line()?)?;
    } else if tested.delivered {
        out.line(&format!("Delivered; the receiver answered {}.", tested.status.unwrap_or_default()))?;
    }
    match tested {
        TestResponse { delivered: true, .. } => Ok(Exit::Ok),
        TestResponse { error, .. } => {
            Err(Failure::new(Exit::Failed, format!("not delivered: {}", one_line(&error.unwrap_or_default()))))
        }
    }
}
