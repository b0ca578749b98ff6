-- Returns {owner, token, count, ms left, waiters} of each holder.
--
-- KEYS  see redis_shared.lua
-- ARGV  none

local found = {}
local waiters = redis.call('LLEN', queue)
for _, owner in ipairs(redis.call('ZRANGEBYSCORE', holders, now_ms() + 1, '+inf')) do
  local token, _, count = grant_of(owner)
  local left = tonumber(redis.call('ZSCORE', holders, owner)) - now_ms()
  table.insert(found, {owner, token, tonumber(count), left, waiters})
end
return found
