-- Takes units that are not reserved out of the stock, all or none.
--
-- KEYS  1 state
-- ARGV  1 units
-- Returns 1, or 0 if fewer are left; 1 also if the sale is not loaded: no one can reserve then

local stock, queued = unpack(redis.call('HMGET', KEYS[1], 'stock', 'queued'))
if not stock then
  return 1
end
if stock - (queued or 0) < tonumber(ARGV[1]) then
  return 0
end
redis.call('HINCRBY', KEYS[1], 'stock', -ARGV[1])
return 1
