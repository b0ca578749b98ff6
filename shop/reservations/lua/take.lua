-- Takes units that are not reserved out of a shard, to give them to another one.
--
-- KEYS  1 state
-- ARGV  1 units, at most
-- Returns the shard's units after that, from which the caller computes what was taken: also by a
-- first run whose reply was lost; nil if the generation is not open

local stock, queued = unpack(redis.call('HMGET', KEYS[1], 'stock', 'queued'))
if not stock then
  return false
end
local left = math.max(0, stock - (queued or 0))
return redis.call('HINCRBY', KEYS[1], 'stock', 0 - math.min(left, tonumber(ARGV[1])))
