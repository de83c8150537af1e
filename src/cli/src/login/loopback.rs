//! Signs in with the browser of this machine: the provider sends it back to a server on loopback (RFC 8252, section 7.3).

use std::time::Duration;

use actix_web::{
    App, HttpRequest, HttpResponse, HttpServer,
    http::{KeepAlive, StatusCode, header},
    rt, web,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::failure;
use crate::{
    browser,
    exit::{Exit, Failure},
    output::{one_line, print_note},
};
use countersign_auth::tokens::{
    code_flow::{AuthorizationRequest, AuthorizationResponseError},
    public_client::{GrantError, PublicClient, TokenResponse},
};

const PATH: &str = "/callback";
/// The time within which the person must sign in.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// The time in which the last page reaches the browser, in seconds.
const SHUTDOWN_SECONDS: u64 = 2;

/// A request of a browser that may have come back from the provider.
struct Callback {
    query: String,
    page: oneshot::Sender<Page>,
}

/// The page that the browser then shows.
type Page = (StatusCode, &'static str);

const SIGNED_IN: Page = (StatusCode::OK, "You have signed in. Close this page and return to the terminal.");
const FOREIGN: Page =
    (StatusCode::BAD_REQUEST, "This page is not the answer to the sign-in that the terminal waits for.");
const FAILED: Page = (StatusCode::BAD_REQUEST, "You are not signed in. The terminal says why.");

/// Sends the person to the provider and waits until the browser comes back.
pub async fn sign_in(client: &PublicClient) -> Result<TokenResponse, Failure> {
    let (sender, mut callbacks) = mpsc::channel(1);
    let server = HttpServer::new(move || {
        App::new().app_data(web::Data::new(sender.clone())).route(PATH, web::get().to(pass_on_callback))
    });
    let server = server.workers(1).keep_alive(KeepAlive::Disabled).shutdown_timeout(SHUTDOWN_SECONDS).disable_signals();
    let cannot_listen = |error| Failure::new(Exit::Unavailable, format!("cannot listen on 127.0.0.1: {error}"));
    let server = server.bind(("127.0.0.1", 0)).map_err(cannot_listen)?;
    let addresses = server.addrs();
    let address = addresses.first().ok_or_else(|| cannot_listen(std::io::ErrorKind::AddrNotAvailable.into()))?;
    let redirect_uri = format!("http://{address}{PATH}");
    let server = server.run();
    let handle = server.handle();
    drop(rt::spawn(server));

    let request = client.request_authorization(&redirect_uri).map_err(failure)?;
    let is_browser_opened = browser::open(request.url.as_str());
    let hint = if is_browser_opened {
        "If no browser opens, open this address:"
    } else {
        "Open this address in a browser on this machine:"
    };
    print_note(&format!("{hint}\n\n  {}\n", one_line(request.url.as_str())));
    let waiting = timeout(TIME_LIMIT, wait_for_answer(client, &request, &mut callbacks));
    let result = waiting.await.unwrap_or_else(|_| Err(GrantError::Refused("expired_token".to_owned())));
    handle.stop(true).await;
    result.map_err(failure)
}

/// Waits for the answer to the request. Other callbacks get a page that says so and are ignored, because any page can send the
/// browser here.
async fn wait_for_answer(
    client: &PublicClient,
    request: &AuthorizationRequest,
    callbacks: &mut mpsc::Receiver<Callback>,
) -> Result<TokenResponse, GrantError> {
    while let Some(Callback { query, page }) = callbacks.recv().await {
        let result = client.redeem_response(request, &query).await;
        let (shown_page, is_foreign) = match result {
            Ok(_) => (SIGNED_IN, false),
            Err(GrantError::Response(AuthorizationResponseError::OtherRequest)) => (FOREIGN, true),
            Err(_) => (FAILED, false),
        };
        // A browser that does not wait for its page misses nothing.
        let _ = page.send(shown_page);
        if !is_foreign {
            return result;
        }
    }
    Err(GrantError::Unusable("the server on 127.0.0.1 has ended".to_owned()))
}

async fn pass_on_callback(request: HttpRequest, callbacks: web::Data<mpsc::Sender<Callback>>) -> HttpResponse {
    let (page, answer) = oneshot::channel();
    let passed_on = callbacks.send(Callback { query: request.query_string().to_owned(), page }).await.is_ok();
    let (status, text) = if passed_on { answer.await.unwrap_or(FOREIGN) } else { FOREIGN };
    HttpResponse::build(status)
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .content_type("text/plain; charset=utf-8")
        .body(text)
}
