//! A gateway for tests that ignores reloads.

use async_trait::async_trait;

use super::Reconfigurable;
use countersign_config::{OidcConfig, RoutesConfig, TokenIssuer, UpstreamConfig, WebhooksConfig};
use countersign_domain::policy::PolicyConfig;
use countersign_store::PolicySnapshot;

/// The name of a person whose actions cannot be recorded.
pub const UNRECORDED_PERSON: &str = "unrecorded";

/// Accepts every new configuration and does nothing with it.
pub struct UnchangingGateway;

#[async_trait]
impl Reconfigurable for UnchangingGateway {
    async fn apply_routing(&self, _: &PolicyConfig, _: &RoutesConfig) -> Result<(), String> {
        Ok(())
    }
    async fn apply_servers(&self, _: &[UpstreamConfig], _: bool) -> Result<(), String> {
        Ok(())
    }
    async fn apply_webhooks(&self, _: &WebhooksConfig) -> Result<(), String> {
        Ok(())
    }
    fn apply_issuers(&self, _: &[TokenIssuer]) {}
    fn apply_identity_provider(&self, _: Option<&OidcConfig>) {}
    fn apply_log_filter(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
    async fn save_policy(&self, _: PolicySnapshot, _: bool) -> Result<(), String> {
        Ok(())
    }
    async fn newest_digest(&self) -> Option<String> {
        None
    }
    async fn record(&self, _: &'static str, by: &str, _: String) -> Result<(), String> {
        if by == UNRECORDED_PERSON { Err("the store is away".to_owned()) } else { Ok(()) }
    }
    async fn unapplied_decisions(&self, _: &str) -> Result<Vec<bool>, String> {
        Ok(Vec::new())
    }
}
