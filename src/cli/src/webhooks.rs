//! `webhooks [list]|deliveries|retry|test`, over REST.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::{
    args::{DefaultedGatewayCommands, WebhooksCommand},
    client::{self, Client},
    exit::{Exit, Failure},
    output::{Output, Style, one_line, print_note},
};
use countersign_domain::text::plural;

/// Longer than a receiver may take, which is at most five minutes.
const MAX_TEST_TIME: Duration = Duration::from_secs(305);

pub fn run(args: &DefaultedGatewayCommands<WebhooksCommand>, out: &mut Output) -> Result<Exit, Failure> {
    client::run(&args.connect, async |mut client| match &args.command {
        None | Some(WebhooksCommand::List) => {
            let answer = client.get(&["webhooks"], &[]).await?;
            client.print(&answer, out, print_webhooks)
        }
        Some(WebhooksCommand::Deliveries { name, limit }) => {
            let answer = client.get(&["webhooks", name, "deliveries"], &[("limit", &limit.to_string())]).await?;
            client.print(&answer, out, print_deliveries)
        }
        Some(WebhooksCommand::Retry { name }) => {
            let answer = client.post(&["webhooks", name, "retry"], &json!({})).await?;
            client.print(&answer, out, |RetryResponse { again }, out| {
                Ok(out.write_line(&format!(
                    "Pending deliveries are sent now; {again} that were given up are tried again."
                ))?)
            })
        }
        Some(WebhooksCommand::Test { name }) => {
            client.timeout = MAX_TEST_TIME;
            test(&client, name, out).await
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

fn print_webhooks(WebhookList { webhooks }: WebhookList, out: &mut Output) -> Result<(), Failure> {
    if webhooks.is_empty() {
        print_note("There are no webhooks; see `webhooks` in config/countersign.yaml.");
    }
    for webhook in &webhooks {
        let (style, word) = if webhook.failing { (Style::Red, "failing") } else { (Style::Green, "up") };
        out.write_styled(Style::Bold, &webhook.name)?;
        out.write_text("  ")?;
        out.write_styled(style, word)?;
        out.write_line(&format!("  {} to {}  {} waiting", webhook.format, webhook.url, webhook.waiting))?;
        if let Some(error) = &webhook.last_error {
            out.write_styled(Style::Yellow, &format!("  ! {error}"))?;
            let next = webhook.next_attempt_at.as_ref().map(|at| format!("  next attempt {at}"));
            out.write_line(&next.unwrap_or_default())?;
        }
    }
    Ok(())
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

fn print_deliveries(DeliveryPage { deliveries }: DeliveryPage, out: &mut Output) -> Result<(), Failure> {
    for delivery in &deliveries {
        let style = match delivery.state.as_str() {
            "delivered" => Style::Green,
            "waiting" => Style::Yellow,
            _ => Style::Red,
        };
        out.write_text(&format!("{:>8}  {}  ", delivery.id, delivery.taken_at))?;
        out.write_styled(style, &format!("{:<9}", delivery.state))?;
        let attempts = plural(delivery.attempts, "attempt");
        let error = delivery.error.as_ref().map(|error| format!("  {error}")).unwrap_or_default();
        out.write_line(&format!("  {}  {}  {attempts}{error}", delivery.kind, delivery.subject))?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct RetryResponse {
    again: u64,
}

async fn test(client: &Client, name: &str, out: &mut Output) -> Result<Exit, Failure> {
    #[derive(Deserialize)]
    struct TestResponse {
        delivered: bool,
        status: Option<u16>,
        error: Option<String>,
    }
    let answer = client.post(&["webhooks", name, "test"], &json!({})).await?;
    let TestResponse { delivered, status, error } = answer.read()?;
    if client.json {
        out.write_json(&answer.json_line()?)?;
    } else if delivered {
        out.write_line(&format!("Delivered; the receiver answered {}.", status.unwrap_or_default()))?;
    }
    if delivered {
        return Ok(Exit::Ok);
    }
    Err(Failure::new(Exit::Failed, format!("not delivered: {}", one_line(&error.unwrap_or_default()))))
}
