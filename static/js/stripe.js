// Lets the customer pay in Stripe's Payment Element: https://docs.stripe.com/js. Card numbers stay in
// its frame. The server asks Stripe for the outcome when the page is loaded again.
(() => {
  "use strict";
  const form = document.querySelector("[data-stripe-key]");
  if (!form) return;
  const problem = form.querySelector("[role=alert]");
  const button = form.querySelector("button");
  if (!window.Stripe) {
    problem.textContent = form.dataset.missing;
    return;
  }
  const here = location.origin + location.pathname;
  const stripe = window.Stripe(form.dataset.stripeKey, {
    locale: form.dataset.language.startsWith("zh") ? "zh" : "en",
  });
  const elements = stripe.elements({ clientSecret: form.dataset.secret });
  elements.create("payment").mount(form.querySelector("[data-stripe-fields]"));
  button.disabled = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    problem.textContent = "";
    const { error } = await stripe.confirmPayment({
      elements,
      confirmParams: { return_url: here },
      redirect: "if_required",
    });
    if (error) {
      problem.textContent = error.message;
      button.disabled = false;
    } else {
      location.assign(here);
    }
  });
})();
