//! `open`: creates a one-time sign-in code in the store, and prints the link that carries it in its fragment.

use std::path::Path;

use jiff::Timestamp;

use super::{
    args::OpenArgs,
    browser,
    client::local_gateway::{self, LocalGateway},
    exit::{Exit, Failure},
    location_from_settings,
    output::{Output, print_note},
    store_settings,
};
use countersign_attach::socket;
use countersign_auth::codes;
use countersign_net::{self as net, tls};

pub fn run(args: &OpenArgs, out: &mut Output) -> Result<Exit, Failure> {
    let settings = store_settings(&args.data)?;
    let gateway = verified_gateway(&settings.data)?;
    let location = location_from_settings(&settings)?;
    let code = codes::create(&*location.credentials()?, Timestamp::now())?;
    let link = format!("{}/#code={code}", gateway.link_base.trim_end_matches('/'));
    out.write_line(&link)?;
    out.finish()?;
    let minutes = codes::CODE_LIFETIME.as_mins();
    // It works once, and the browser is faster than other users who see it among the arguments of `xdg-open`.
    if !args.print && browser::open(&link) {
        print_note(&format!("Opening the dashboard. The link works once, within {minutes} minutes."));
    } else {
        print_note(&format!("Open this link in your browser. It works once, within {minutes} minutes."));
    }
    Ok(Exit::Ok)
}

/// Returns the gateway that serves the data directory, after it has proved its identity. Otherwise another program could
/// get the sign-in code from the link.
fn verified_gateway(data: &Path) -> Result<LocalGateway, Failure> {
    let gateway = local_gateway::find(data)?;
    actix_web::rt::System::new()
        .block_on(async {
            if gateway.url.scheme() == "https" {
                // The certificate may not cover the local address, so it is not checked here; the browser checks it for
                // the address in the link. If the gateway's socket answers, no other program has its port.
                return match socket::connect(data).await {
                    Ok(Some(_)) => Ok(()),
                    Ok(None) => Err(format!("the gateway of {} has ended", data.display())),
                    Err(error) => Err(error.to_string()),
                };
            }
            gateway.verify(&net::client(tls::public_config())).await
        })
        .map_err(|reason| Failure::new(Exit::Unavailable, reason))?;
    Ok(gateway)
}
