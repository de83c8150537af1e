//! For tests: what a configuration that is read again would change, left as it is.

use std::future::ready;

use futures_util::future::BoxFuture;

use super::Applies;
use countersign_config::{RoutesConfig, UpstreamConfig, WebhookConfig};
use countersign_domain::policy::PolicyConfig;
use countersign_store::PolicySnapshot;

/// Takes every new configuration and does nothing with it.
pub struct Unmoved;

impl Applies for Unmoved {
    fn routing<'a>(&'a self, _: &'a PolicyConfig, _: &'a RoutesConfig) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
    fn servers<'a>(&'a self, _: &'a [UpstreamConfig], _: &'a [UpstreamConfig]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
    fn webhooks<'a>(&'a self, _: &'a [WebhookConfig]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
    fn log_filter(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
    fn save(&self, _: PolicySnapshot, _: bool) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
    fn newest(&self) -> BoxFuture<'static, Option<String>> {
        Box::pin(ready(None))
    }
    fn record(&self, _: &'static str, _: &str, _: String) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
}
