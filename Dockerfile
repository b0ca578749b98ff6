# One image for web, worker, consumer, beat and the migrate job; docker-compose.yml gives each its command.
# The Python that the tests run with.
FROM python:3.11-slim-bookworm AS build
# The compiler and the headers that mysqlclient needs stay in this stage.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libmariadb-dev pkg-config \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/production.txt /tmp/
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --require-hashes -r /tmp/production.txt

FROM python:3.11-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libmariadb3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /var/lib/shop shop
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SHOP_VAR=/var/lib/shop
WORKDIR /app
COPY --from=build /venv /venv
# What .dockerignore lets through.
COPY . .
USER 10001
RUN DJANGO_SETTINGS_MODULE=shop.settings.base python manage.py collectstatic --noinput \
    && mkdir /var/lib/shop/media
# Only now: nothing of the shop may be imported before that folder exists.
ENV PROMETHEUS_MULTIPROC_DIR=/tmp/metrics \
    DJANGO_SETTINGS_MODULE=shop.settings.production
EXPOSE 8000 9000
# Forwarded headers are believed: only the proxy of docker-compose.yml reaches this port.
ENV FORWARDED_ALLOW_IPS=*
ENTRYPOINT ["sh", "/app/deploy/entrypoint.sh"]
CMD ["gunicorn", "--config", "deploy/gunicorn_conf.py", "shop.wsgi"]
