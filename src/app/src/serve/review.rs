//! Starts the changes, with the reviewers, the pins of tools and the standing rules that decide about them.

use std::sync::Arc;

use super::ServeError;
use countersign_auth::stored_credentials::StoredCredentials;
use countersign_config::Config;
use countersign_domain::policy::{Policy, Reviewers};
use countersign_review::{Changes, ReviewConfig};
use countersign_routing::{PublishedTable, RouteDirectory, RouteTable};
use countersign_rulings::standing_rules::StandingRuleCache;
use countersign_store::{PinStore, Store};

/// The changes and the reviewers, with what reviewers have decided about tools and future calls.
pub(super) struct Review {
    /// The published routes, in which the changes find their providers.
    pub routes: Arc<PublishedTable>,
    pub changes: Changes,
    pub reviewers: Arc<Reviewers>,
    pub pins: Arc<PinStore>,
    pub rule_cache: Arc<StandingRuleCache>,
}

impl Review {
    /// Starts the changes. There are no routes to providers yet.
    ///
    /// # Errors
    /// Those of the store and of [`Changes::start`].
    pub(super) async fn start(
        config: &Config,
        store: &Arc<dyn Store>,
        credentials: &StoredCredentials,
    ) -> Result<Self, ServeError> {
        let routes = Arc::new(PublishedTable::from_pointee(RouteTable::default()));
        let directory = Arc::new(RouteDirectory(Arc::clone(&routes)));
        let pins = Arc::new(PinStore::open(Arc::clone(store)).await?);
        let reviewers =
            Arc::new(Reviewers::new(&config.policy.groups).with_keys(Arc::clone(credentials.keyring()) as _));
        reviewers.set_issuers(config.auth.tokens.iter().map(|issuer| issuer.issuer.as_str()));
        let nodes = store.nodes();
        let review_config = ReviewConfig {
            reviewers: Arc::clone(&reviewers),
            clock: Arc::new(move || nodes.now()),
            bundle_window: config.bundle_window,
            ..(&config.changes).into()
        };
        let changes = Changes::start(Arc::clone(store), directory, review_config).await?;
        // The start of the changes ends the standing rules of a restored backup, so the rules are read after it.
        let rule_cache = StandingRuleCache::open(store).await?;
        Ok(Self { routes, changes, reviewers, pins, rule_cache })
    }

    /// Returns the configured policy with the decisions of reviewers.
    pub(super) fn policy(&self, config: &Config) -> Policy {
        Policy::new(&config.policy)
            .with_pins(Arc::clone(&self.pins) as _)
            .with_standing_rules(Arc::clone(&self.rule_cache) as _, Arc::clone(&self.reviewers) as _)
    }
}
