//! The account that an upstream uses, and the upstreams of the persons who use one server with accounts of their own.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Phase, Upstream};
use crate::{
    catalog::usable_definitions::UsableDefinitions,
    credentials::{AccountHolder, AuthorizationError, CredentialSource, Credentials},
    link::Connector,
};
use countersign_config::UpstreamConfig;
use countersign_domain::principal::Principal;
use countersign_protocol::{ErrorKind, McpError};

/// The time after which the upstream of a person is closed if nobody used it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// When this many personal upstreams of one server are open, opening another closes the least recently used idle one.
const PERSONAL_UPSTREAMS_TARGET: usize = 1000;

/// The credentials of an account at a server, with its holder.
#[derive(Clone)]
pub struct AccountCredentials {
    pub holder: AccountHolder,
    pub credentials: Arc<dyn Credentials>,
}

impl AccountCredentials {
    /// Returns the credentials of a holder at a server, if the server is used with accounts.
    pub(crate) fn new(
        source: &dyn CredentialSource,
        config: &Arc<UpstreamConfig>,
        holder: AccountHolder,
    ) -> Option<Self> {
        Some(Self { credentials: source.credentials(config, &holder)?, holder })
    }
}

/// Creates the connectors of one upstream: one for its command, or one for each of its URLs. Their links use the
/// account.
pub type ConnectorFactory =
    Arc<dyn Fn(&Arc<UpstreamConfig>, Option<&AccountCredentials>) -> Vec<Arc<dyn Connector>> + Send + Sync>;

/// The accounts of an upstream that may need one.
pub struct UpstreamAccounts {
    pub(crate) source: Arc<dyn CredentialSource>,
    /// The account of all requests of this upstream. Where persons have accounts of their own, this is the account of
    /// the gateway, which only serves to detect whether the server requires a token.
    pub(crate) account: AccountCredentials,
    /// The upstreams of persons. `None` in a personal upstream, and where all callers share one account.
    pub(crate) personal_upstreams: Option<PersonalUpstreams>,
    /// The configured upstream that this personal upstream belongs to.
    pub(crate) configured_upstream: Weak<Upstream>,
}

/// The upstreams of the persons who use one server with accounts of their own.
pub(crate) struct PersonalUpstreams {
    /// `true` once the server has required a token, so that the configured upstream itself has no links.
    is_required: AtomicBool,
    open: Mutex<HashMap<AccountHolder, OpenUpstream>>,
    /// The holder of the account with which the offered lists were read.
    list_holder: Mutex<Option<AccountHolder>>,
    pub(crate) connectors: ConnectorFactory,
}

struct OpenUpstream {
    upstream: Arc<Upstream>,
    last_used: Instant,
}

impl OpenUpstream {
    fn is_busy(&self) -> bool {
        self.upstream.calls_in_flight() > 0
    }
}

impl PersonalUpstreams {
    pub(crate) fn new(is_required: bool, connectors: ConnectorFactory) -> Self {
        Self {
            is_required: AtomicBool::new(is_required),
            open: Mutex::default(),
            list_holder: Mutex::default(),
            connectors,
        }
    }

    /// Returns `true` if the server requires a token, so that each person uses an upstream of their own.
    pub(crate) fn is_required(&self) -> bool {
        self.is_required.load(Ordering::Acquire)
    }

    /// Returns the open upstream of a person, and marks it as used now.
    pub(crate) fn find_open(&self, holder: &AccountHolder) -> Option<Arc<Upstream>> {
        let mut open = self.open.lock();
        let entry = open.get_mut(holder)?;
        entry.last_used = Instant::now();
        Some(Arc::clone(&entry.upstream))
    }

    /// Returns the open upstream of a person, or opens it. If [`PERSONAL_UPSTREAMS_TARGET`] are open, the one that was
    /// unused for the longest time is closed first, but never one with calls, or the one with which the lists are read.
    pub(crate) fn get_or_open(&self, holder: &AccountHolder, open: impl FnOnce() -> Arc<Upstream>) -> Arc<Upstream> {
        let mut all = self.open.lock();
        if let Some(entry) = all.get_mut(holder) {
            entry.last_used = Instant::now();
            return Arc::clone(&entry.upstream);
        }
        let list_holder = self.list_holder.lock().clone();
        if all.len() >= PERSONAL_UPSTREAMS_TARGET {
            let unused = all.iter().filter(|(other, entry)| Some(*other) != list_holder.as_ref() && !entry.is_busy());
            let longest = unused.min_by_key(|(_, entry)| entry.last_used).map(|(other, _)| other.clone());
            if let Some(closed) = longest.and_then(|longest| all.remove(&longest)) {
                closed.upstream.close();
            }
        }
        let upstream = open();
        let entry = OpenUpstream { upstream: Arc::clone(&upstream), last_used: Instant::now() };
        all.insert(holder.clone(), entry);
        upstream
    }

    /// Removes the upstream of a person, so that later calls open another one.
    pub(crate) fn remove(&self, holder: &AccountHolder) -> Option<Arc<Upstream>> {
        self.open.lock().remove(holder).map(|entry| entry.upstream)
    }

    /// Closes the upstreams that nobody has used for a while, except the one with which the lists are read.
    pub(crate) fn close_idle(&self) {
        let list_holder = self.list_holder.lock().clone();
        self.open.lock().retain(|holder, entry| {
            let must_stay =
                list_holder.as_ref() == Some(holder) || entry.last_used.elapsed() < IDLE_TIMEOUT || entry.is_busy();
            if !must_stay {
                entry.upstream.close();
            }
            must_stay
        });
    }

    /// Returns the upstream with which the lists are read, if it is open.
    pub(crate) fn find_list_source(&self) -> Option<Arc<Upstream>> {
        let open = self.open.lock();
        let holder = self.list_holder.lock();
        open.get(holder.as_ref()?).map(|entry| Arc::clone(&entry.upstream))
    }

    /// Returns all open upstreams.
    pub(crate) fn all(&self) -> Vec<Arc<Upstream>> {
        self.open.lock().values().map(|entry| Arc::clone(&entry.upstream)).collect()
    }

    /// Chooses the account with which the lists are read: the one that is in use, else the first stored one, else one
    /// that is connected. One whose last attempt failed comes after the others, and one whose person must connect again
    /// is not chosen.
    pub(crate) fn choose_list_holder(&self, known: Vec<AccountHolder>) -> Option<AccountHolder> {
        let open = self.open.lock();
        let mut list_holder = self.list_holder.lock();
        let phase = |holder: &AccountHolder| open.get(holder).map(|entry| entry.upstream.phase());
        let current = list_holder.take().filter(|holder| known.contains(holder) || open.contains_key(holder));
        let connected = open.iter().filter(|(_, entry)| entry.upstream.is_up());
        let connected = connected.map(|(holder, _)| holder.clone());
        let mut usable: Vec<_> = current.into_iter().chain(known).chain(connected).collect();
        usable.retain(|holder| !matches!(phase(holder), Some(Phase::ConsentNeeded(_))));
        let working = usable.iter().find(|holder| !matches!(phase(holder), Some(Phase::Down(_))));
        *list_holder = working.or(usable.first()).cloned();
        list_holder.clone()
    }

    /// Returns `true` if the lists may be read with one of these accounts, whose last attempt did not fail.
    pub(crate) fn has_working_account(&self, known: &[AccountHolder]) -> bool {
        let open = self.open.lock();
        let is_failing =
            |entry: &OpenUpstream| matches!(entry.upstream.phase(), Phase::Down(_) | Phase::ConsentNeeded(_));
        known.iter().any(|holder| !open.get(holder).is_some_and(is_failing))
    }
}

impl Upstream {
    /// Returns the upstreams of persons, if each person uses an account of their own at the server.
    pub(crate) fn personal_upstreams(&self) -> Option<&PersonalUpstreams> {
        let personal_upstreams = self.accounts.as_ref()?.personal_upstreams.as_ref();
        personal_upstreams.filter(|personal_upstreams| personal_upstreams.is_required())
    }

    /// Makes each person use an account of their own, because the server has required a token. Returns `false` for an
    /// upstream whose calls use one account.
    pub(crate) fn require_personal_accounts(&self) -> bool {
        let Some(personal_upstreams) = self.accounts.as_ref().and_then(|accounts| accounts.personal_upstreams.as_ref())
        else {
            return false;
        };
        if !personal_upstreams.is_required.swap(true, Ordering::AcqRel) {
            self.account_changed.notify_one();
        }
        true
    }

    /// Returns the upstream as it is configured: this one, unless it is that of a person.
    #[must_use]
    pub fn configured(self: &Arc<Self>) -> Arc<Self> {
        self.configured_upstream().unwrap_or_else(|| Arc::clone(self))
    }

    /// Returns `true` if calls may need an account, so that they go to the upstream that [`Self::for_principal`]
    /// returns.
    pub fn uses_accounts(&self) -> bool {
        self.accounts
            .as_ref()
            .is_some_and(|accounts| accounts.personal_upstreams.as_ref().is_none_or(PersonalUpstreams::is_required))
    }

    /// Returns `true` if nobody has connected the account that the server requires, so that no list is known. The only
    /// tool is then [`super::CONNECT_TOOL`].
    pub fn needs_consent(&self) -> bool {
        self.accounts.is_some() && !self.was_reached() && matches!(*self.phase.borrow(), Phase::ConsentNeeded(_))
    }

    /// Returns the upstream of the principal's own account, if it is open.
    #[must_use]
    pub fn find_open_upstream(&self, principal: &Principal) -> Option<Arc<Self>> {
        let (accounts, personal_upstreams) = (self.accounts.as_ref()?, self.personal_upstreams()?);
        let holder = accounts.source.holder(&self.config, principal);
        personal_upstreams.open.lock().get(&holder).map(|entry| Arc::clone(&entry.upstream))
    }

    /// Returns the lists of the principal's own account, if they are known.
    pub fn account_lists(&self, principal: &Principal) -> Option<Arc<UsableDefinitions>> {
        let personal = self.find_open_upstream(principal).filter(|personal| personal.was_reached())?;
        Some(personal.definitions.load_full())
    }

    /// Returns `true` if each person uses an account of their own, so that their lists differ.
    pub fn has_personal_accounts(&self) -> bool {
        self.personal_upstreams().is_some()
    }

    /// Returns `true` if the calls of a principal use the account of this holder.
    pub fn is_account_of(&self, principal: &Principal, holder: &str) -> bool {
        let source = self.accounts.as_ref().map(|accounts| &accounts.source);
        source.is_some_and(|source| source.holder(&self.config, principal).as_str() == holder)
    }

    /// Creates the error for a call that no account authorizes. Nothing of it was executed. If a person must consent at a
    /// server with personal accounts, each person uses their own from then on ([`Self::require_personal_accounts`]).
    pub(crate) fn authorization_error(&self, failure: AuthorizationError) -> McpError {
        let name = self.config.name.as_str();
        let kind = match failure {
            AuthorizationError::ConsentNeeded(_) | AuthorizationError::Refused(_) => ErrorKind::Authorization,
            AuthorizationError::Unavailable(_) => ErrorKind::UpstreamUnavailable,
        };
        let error = self.call_error(kind, format!("the server {name} {failure}"), "not_applied");
        match (&self.accounts, failure) {
            (Some(accounts), AuthorizationError::ConsentNeeded(_)) => {
                self.require_personal_accounts();
                error.with("connectUrl", accounts.source.connect_url(name))
            }
            _ => error,
        }
    }

    /// Returns the open upstreams of persons.
    pub(crate) fn open_personal_upstreams(&self) -> Vec<Arc<Self>> {
        self.personal_upstreams().map(PersonalUpstreams::all).unwrap_or_default()
    }

    /// Returns the number of calls in flight, including those of all persons.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.call_slots.in_use()
            + self.open_personal_upstreams().iter().map(|personal| personal.calls_in_flight()).sum::<usize>()
    }
}
