-- Sets the units of the stock row, which opens a filled generation.
--
-- KEYS  1 state
-- ARGV  1 units, 2 run id of the server, which was compared thoroughly
-- Returns 1, nil if Redis lost the generation

if redis.call('EXISTS', KEYS[1]) == 0 then
  return false
end
redis.call('HSET', KEYS[1], 'stock', ARGV[1], 'run', ARGV[2])
return 1
