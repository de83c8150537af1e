//! A gateway for tests that ignores reloads.

use std::future::ready;

use futures_util::future::BoxFuture;

use super::Reconfigurable;
use countersign_config::{OidcConfig, RoutesConfig, TokenIssuer, UpstreamConfig, WebhooksConfig};
use countersign_domain::policy::PolicyConfig;
use countersign_store::PolicySnapshot;

/// The name of a person whose actions cannot be recorded.
pub const UNRECORDED_PERSON: &str = "unrecorded";

/// Accepts every new configuration and does nothing with it.
pub struct UnchangingGateway;

impl Reconfigurable for UnchangingGateway {
    fn apply_routing<'a>(&'a self, _: &'a PolicyConfig, _: &'a RoutesConfig) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
    fn apply_servers<'a>(&'a self, _: &'a [UpstreamConfig], _: bool) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
    fn apply_webhooks<'a>(&'a self, _: &'a WebhooksConfig) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
    fn apply_issuers(&self, _: &[TokenIssuer]) {}
    fn apply_identity_provider(&self, _: Option<&OidcConfig>) {}
    fn apply_log_filter(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
    fn save_policy(&self, _: PolicySnapshot, _: bool) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
    fn newest_digest(&self) -> BoxFuture<'static, Option<String>> {
        Box::pin(ready(None))
    }
    fn record(&self, _: &'static str, by: &str, _: String) -> BoxFuture<'static, Result<(), String>> {
        let result = if by == UNRECORDED_PERSON { Err("the store is away".to_owned()) } else { Ok(()) };
        Box::pin(ready(result))
    }
    fn unapplied_decisions<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<bool>, String>> {
        Box::pin(ready(Ok(Vec::new())))
    }
}
