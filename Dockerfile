# The pages of `expound serve`, without a GPU: docker run -p 8000:8000 -v "$PWD:/data" expound --model my-model
FROM python:3.12-slim
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt \
    --extra-index-url https://download.pytorch.org/whl/cpu ".[serve]" \
    && rm -rf /source && useradd --create-home expound
USER expound
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["expound", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--help"]
