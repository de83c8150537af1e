//! One connection to a server over Streamable HTTP: in the stateless era no more than its headers, in the handshake era
//! a session.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use awc::http::{
    Uri,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use futures_util::future::LocalBoxFuture;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

use super::{
    Place,
    chores::{self, Chore},
    client::{self, Extra, Head, HttpAnswer},
    head::Field,
    kind,
    trust::Trust,
};
use crate::link::{
    Link, LinkError, LinkKind, Listener, Negotiated, Outgoing, Response,
    server_requests::{Asked, Queue},
    wire,
};
use countersign_protocol::{Era, Method, Revision, headers::encode_value};

static VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(super) static METHOD: HeaderName = HeaderName::from_static("mcp-method");
static NAME: HeaderName = HeaderName::from_static("mcp-name");
pub(super) static SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// See the module's page.
pub(super) struct HttpLink {
    pub shared: Arc<Shared>,
    stateless: Arc<AtomicBool>,
    /// Does what must not wait for a caller, on the thread that opened the session.
    chores: OnceLock<Sender<Chore>>,
}

/// How long the opening of a session waits for its GET stream to stand; some servers answer it with their first message.
const LISTENS_WITHIN: Duration = Duration::from_millis(500);

/// What outlives a call: the chores and the GET stream have it too.
pub(super) struct Shared {
    pub uri: Uri,
    pub trust: Arc<Trust>,
    /// What every request has, of whatever kind.
    base: HeaderMap,
    mode: ArcSwap<Mode>,
    pub unsolicited: Arc<dyn Listener>,
    pub asked: Asked,
    /// Whether the server has a GET stream is known.
    pub listens: CancellationToken,
    pub closed: CancellationToken,
}

/// What requests carry now.
pub(super) struct Mode {
    pub modern: bool,
    pub session: Option<HeaderValue>,
    /// Headers of everything but a POST.
    pub plain: HeaderMap,
    pub post: Arc<Head>,
}

impl Shared {
    pub fn mode(&self) -> Arc<Mode> {
        self.mode.load_full()
    }

    /// `revision`: `None` before the handshake.
    fn set(&self, modern: bool, revision: Option<Revision>, session: Option<HeaderValue>) {
        let mut plain = self.base.clone();
        if let Some(revision) = revision.filter(|revision| revision.rules().version_header) {
            plain.insert(VERSION.clone(), HeaderValue::from_static(revision.as_str()));
        }
        if let Some(session) = &session {
            plain.insert(SESSION.clone(), session.clone());
        }
        let mut headers = plain.clone();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let post = Head::new(self.uri.clone(), headers, &self.trust);
        self.mode.store(Arc::new(Mode { modern, session, plain, post }));
    }

    /// The session has ended: nothing can be sent any more.
    pub fn gone(&self) -> LinkError {
        self.closed.cancel();
        self.asked.end();
        LinkError::SessionGone
    }
}

impl HttpLink {
    pub fn new(place: &Place, unsolicited: Arc<dyn Listener>, stateless: &Arc<AtomicBool>) -> Result<Self, LinkError> {
        let (uri, trust) = (place.uri()?, Arc::clone(&place.trust));
        let nothing = Mode {
            modern: true,
            session: None,
            plain: HeaderMap::new(),
            post: Head::new(uri.clone(), HeaderMap::new(), &trust),
        };
        let shared = Shared {
            uri,
            trust,
            base: place.headers.clone(),
            mode: ArcSwap::from_pointee(nothing),
            unsolicited,
            asked: Asked::default(),
            listens: CancellationToken::new(),
            closed: CancellationToken::new(),
        };
        // Until a handshake says otherwise: discovery is of the stateless era.
        shared.set(true, Some(Revision::MODERN), None);
        Ok(Self { shared: Arc::new(shared), stateless: Arc::clone(stateless), chores: OnceLock::new() })
    }

    /// Does it later and never waits; without a session there is nothing to do.
    fn later(&self, chore: Chore) {
        if let Some(chores) = self.chores.get() {
            // Full of answers to a server that takes none: it misses nothing by this.
            let _ = chores.try_send(chore);
        }
    }

    /// Where answers to the server's own requests go.
    pub fn queue(&self) -> Queue {
        let (chores, shared) = (self.chores.get().cloned(), Arc::downgrade(&self.shared));
        Arc::new(move |message| {
            let Some(chores) = &chores else { return };
            if chores.try_send(Chore::Post(message.into())).is_err()
                && let Some(shared) = shared.upgrade().filter(|shared| !shared.closed.is_cancelled())
            {
                // It asks faster than it reads: nothing good comes of that session.
                tracing::warn!("a server sends more requests than it takes answers to; its session is ended");
                shared.gone();
            }
        })
    }

    async fn call(&self, outgoing: &Outgoing, listener: Arc<dyn Listener>) -> Result<Response, LinkError> {
        if self.shared.closed.is_cancelled() {
            return Err(LinkError::Unreachable("the session has ended".to_owned()));
        }
        let initialize = &*outgoing.method == "initialize";
        if initialize {
            // The handshake era begins here; an earlier `server/discover` was of the other.
            self.shared.set(false, None, None);
            self.chores.get_or_init(|| chores::start(Arc::clone(&self.shared)));
        }
        let mode = self.shared.mode.load_full();
        let mut guard = (!mode.modern && !initialize).then(|| Guard { link: self, id: outgoing.id, armed: true });
        let answer = self.exchange(&mode, outgoing, &listener, initialize).await;
        if let Some(guard) = &mut guard {
            guard.armed = false;
        }
        answer
    }

    async fn exchange(
        &self,
        mode: &Mode,
        outgoing: &Outgoing,
        listener: &Arc<dyn Listener>,
        initialize: bool,
    ) -> Result<Response, LinkError> {
        // Sent once: what may be sent again is decided in `calls`, for every transport.
        let response = self.send(mode, outgoing).await?;
        if initialize && let Some(session) = response.field(Field::Session) {
            // 2025-11-25/basic/transports, "Session Management": visible ASCII only.
            let visible = !session.is_empty() && session.iter().all(u8::is_ascii_graphic);
            let Some(session) = HeaderValue::from_bytes(session).ok().filter(|_| visible) else {
                return Err(LinkError::Protocol("its session id contains characters that are not allowed".to_owned()));
            };
            self.shared.set(false, None, Some(session));
        }
        self.answer(response, mode, outgoing.id, listener).await
    }

    async fn send(&self, mode: &Mode, outgoing: &Outgoing) -> Result<HttpAnswer, LinkError> {
        let extra =
            if mode.modern || !outgoing.headers.is_empty() { extra(mode.modern, outgoing)? } else { Extra::new() };
        client::send(&mode.post, extra, &outgoing.body, outgoing.permit.as_ref()).await
    }

    async fn tell(&self, method: &str, params: Option<&str>) -> Result<(), LinkError> {
        let mode = self.shared.mode.load_full();
        chores::post(&self.shared, &mode, wire::notification(method, params).into(), method).await?;
        if method == "notifications/initialized" {
            self.later(Chore::Listen(self.queue()));
            if self.chores.get().is_some() {
                // Some servers ask there what belongs to a call, and forget it where nobody listens.
                let _ = tokio::time::timeout(LISTENS_WITHIN, self.shared.listens.cancelled()).await;
            }
        }
        Ok(())
    }
}

/// The headers that one request has alone.
fn extra(modern: bool, outgoing: &Outgoing) -> Result<Extra, LinkError> {
    let mut extra = Extra::with_capacity(outgoing.headers.len() + 2);
    for (name, value) in &outgoing.headers {
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) else {
            return Err(LinkError::Unreachable(format!("`{name}` cannot be sent as an HTTP header")));
        };
        // What the protocol says is ours to say.
        if !modern || (name != METHOD && (name != NAME || outgoing.name.is_none())) {
            extra.push((name, value));
        }
    }
    if modern {
        let method = match Method::parse(&outgoing.method) {
            Some(method) => HeaderValue::from_static(method.as_str()),
            None => value(&outgoing.method)?,
        };
        extra.push((METHOD.clone(), method));
        if let Some(name) = &outgoing.name {
            extra.push((NAME.clone(), value(name)?));
        }
    }
    Ok(extra)
}

pub(super) fn value(text: &str) -> Result<HeaderValue, LinkError> {
    HeaderValue::from_str(&encode_value(text)).map_err(|error| LinkError::Unreachable(error.to_string()))
}

/// Cancels a request of the handshake era whose future is dropped: closing the stream does not
/// (2025-11-25/basic/transports, "Sending Messages to the Server").
struct Guard<'a> {
    link: &'a HttpLink,
    id: u64,
    armed: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.link.later(Chore::Post(wire::cancelled(self.id).into()));
        }
    }
}

impl Link for HttpLink {
    fn kind(&self) -> LinkKind {
        kind(&self.stateless)
    }

    fn request<'a>(
        &'a self,
        outgoing: &'a Outgoing,
        listener: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>> {
        Box::pin(self.call(outgoing, listener))
    }

    fn notify<'a>(&'a self, method: &'a str, params: Option<&'a str>) -> LocalBoxFuture<'a, Result<(), LinkError>> {
        Box::pin(self.tell(method, params))
    }

    fn opened(&self, negotiated: &Negotiated) {
        let modern = negotiated.revision.era() == Era::Modern;
        self.stateless.store(modern, Ordering::Relaxed);
        let session = self.shared.mode.load().session.clone().filter(|_| !modern);
        self.shared.set(modern, Some(negotiated.revision), session);
    }

    fn closed(&self) -> CancellationToken {
        self.shared.closed.clone()
    }

    fn close(&self) {
        if !self.shared.closed.is_cancelled() {
            self.shared.closed.cancel();
            self.shared.asked.end();
            self.later(Chore::End);
        }
    }
}

impl Drop for HttpLink {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::RecordingListener;

    #[actix::test]
    async fn a_server_that_takes_no_answers_gets_few_connections_and_is_given_up() {
        let server = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}/mcp", server.local_addr().unwrap()).parse().unwrap();
        let place = Place::new(&url, &[], None);
        let link = HttpLink::new(&place, Arc::new(RecordingListener::default()), &Arc::default()).unwrap();
        link.chores.get_or_init(|| chores::start(Arc::clone(&link.shared)));
        let queue = link.queue();
        for _ in 0..chores::WAITING {
            queue(wire::cancelled(1));
        }
        assert!(!link.shared.closed.is_cancelled());
        // Those that are being sent make room for as many.
        server.set_nonblocking(true).unwrap();
        let mut connections = Vec::new();
        while connections.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            connections.extend(server.accept());
        }
        for _ in 0..=2 * chores::AT_ONCE {
            queue(wire::cancelled(1));
        }
        assert!(link.shared.closed.is_cancelled());
        while let Ok(connection) = server.accept() {
            connections.push(connection);
        }
        assert!(connections.len() <= chores::AT_ONCE, "{}", connections.len());
    }
}
