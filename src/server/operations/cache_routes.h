// What operators see and say of the caches: /v1/cache/.
#pragma once

#include "server/operations/exchange.h"
#include "server/operations/inference.h"
#include "server/protocol/named_images.h"

namespace vlcache {

class CacheRoutes {
 public:
  // Both outlive this.
  CacheRoutes(Inference& inference, NamedImages& named_images) : inference_(inference), named_images_(named_images) {}

  // What the caches have done and hold; for everybody.
  HttpResponse stats() const;
  // Of the images in memory: {"data": [{id, kv_bytes, embeddings_bytes, uses, pinned}]}. This and what follows is for
  // admins; who is none is told so. Answers when the inference thread has a moment.
  void entries(const ExchangePtr& exchange);
  // {"id": HASH, "pinned": true}: the image stays in memory.
  void pin(const HttpRequest& request, const ExchangePtr& exchange);
  // {"id": HASH}: the image goes, from memory and every tier.
  void drop(const HttpRequest& request, const ExchangePtr& exchange);
  // All goes that memory keeps beyond running requests.
  void reset(const ExchangePtr& exchange);

 private:
  Inference& inference_;
  NamedImages& named_images_;
};

}  // namespace vlcache
